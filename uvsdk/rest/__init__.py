"""What the device's agent and the server have in common over HTTP."""
