"""The parts of `tests.benchmarks.panel`: `inside` runs in the notebook's kernel, the others drive the browser."""
