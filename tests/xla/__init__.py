"""Tests on a device of torch_xla: `make test-xla`, by hand, in an environment of its own."""
