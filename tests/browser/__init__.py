"""Tests that drive a real Chromium against a real JupyterLab: see lab.py for the harness."""
