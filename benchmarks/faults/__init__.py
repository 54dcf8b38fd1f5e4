"""Fault-injection tests of training: kills, full disks, damaged files and invalid data."""
