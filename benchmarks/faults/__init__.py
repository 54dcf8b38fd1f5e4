"""What a training survives: kills, full disks, damaged files, bad data and the like."""
