"""Writes, reads and compares run folders. One job writes a folder; any process on any machine
can read it, without torch.
"""
