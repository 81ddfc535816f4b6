"""The device's side: an encrypted store, verification without a server, and part in training when there is one."""

from __future__ import annotations

from uvsdk_device.federation import Federation
from uvsdk_device.keystore import EncryptedStore
from uvsdk_device.membership import KnownDevice
from uvsdk_device.rounds import RoundReport
from uvsdk_device.runtime import Runtime

__all__ = ["EncryptedStore", "Federation", "KnownDevice", "RoundReport", "Runtime"]
