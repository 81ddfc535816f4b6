"""What the library asks of its process and its machine: forks, the network, and dependencies that stay offline."""
