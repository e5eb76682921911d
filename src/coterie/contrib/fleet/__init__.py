"""Fleets of devices: methods in virtual time, which devices need to compute and to send."""

from coterie.contrib.fleet.devices import DEVICE_CLASSES as DEVICE_CLASSES
from coterie.contrib.fleet.devices import MEASURED_PHONES as MEASURED_PHONES
from coterie.contrib.fleet.devices import Device as Device
from coterie.contrib.fleet.devices import DeviceClass as DeviceClass
from coterie.contrib.fleet.devices import Rhythm as Rhythm
from coterie.contrib.fleet.timed import Timed as Timed
