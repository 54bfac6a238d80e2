"""A user's own script, whose settings the command line replaces."""

from __future__ import annotations

import argparse

import torch
from net import both

import workbench as wb

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=8)
    torch.manual_seed(0)
    bench = wb.Workbench(**both(parser.parse_args().width), lr=0.5, batch_size=8, accelerator="cpu")
    bench.set(lr=0.25)
    bench.fit(max_epochs=7).result()
    bench.close()
