"""What keeps a message, an identifier and a request from being read, guessed or forged.

* :mod:`uvsdk.privacy.sealing`: HPKE envelopes, bound to the round they belong to and signed by their sender.
* :mod:`uvsdk.privacy.identifiers`: keyed hashes in place of user ids.
* :mod:`uvsdk.privacy.request_signing`: HTTP requests signed by a device (RFC 9421).
"""
