"""Writes the comparison with what the run began with: its weights, the order of its samples, its first batches."""

from __future__ import annotations

import json
from textwrap import dedent

from workbench.engine.data.checksums import FIRST
from workbench.export.script_spec import ScriptSpec


def run(r: ScriptSpec) -> str:
    """The table of the run's checksums."""
    found = _found(r)
    if not found:
        return ""
    return f"# What the run began with, as checksums.\nRUN = {json.dumps(found)}"


def functions(r: ScriptSpec) -> str:
    """The functions that compare, and say what differs."""
    if not _found(r):
        return ""
    parts = [_CHECKSUM, _COMPARE, *([_COMPARED] if "batches" in _found(r) else [])]
    return "\n\n\n".join(parts)


def begun(r: ScriptSpec) -> list[str]:
    """The lines of main after which nothing is compared, where it does something else than the run on purpose."""
    if not _found(r):
        return []
    other = "config != Config()"
    if not r.single_process_reason:
        other += f" or accelerator.num_processes != {r.ranks}"
        other += " or not accelerator.is_main_process" if r.distributed else ""
    return [f"if {other}:", "    RUN.clear()  # it is not meant to repeat the run"]


def weights(r: ScriptSpec) -> list[str]:
    """The line that compares the weights."""
    return [f'compare("weights", [p.data.flatten()[:1000] for p in {r.parameters}])'] if "weights" in _found(r) else []


def batches(r: ScriptSpec, loader: str) -> str:
    """The expression for the training batches, the first of which are compared."""
    return f"compared({loader})" if "batches" in _found(r) else loader


def order(r: ScriptSpec, mixed: bool) -> list[str]:
    """The lines that compare the order of the samples, of `dataset` and `generator`. mixed: also data to validate on are read like this."""
    line = 'compare("order", [len(dataset), generator.get_state()])'
    if "order" not in _found(r):
        return []
    return ["if train:", f"    {line}"] if mixed else [line]


def _found(r: ScriptSpec) -> dict[str, list[str]]:
    """The checksums of the run that its script can compare."""
    told = r.checksums
    shuffles = r.train.kind == "samples" and r.settings.shuffle and not (r.train.sampler or r.train.batch_sampler)
    found = {"weights": [told.weights], "order": [told.order] if shuffles else [], "batches": list(told.batches)}
    return {what: sums for what, sums in found.items() if sums and all(sums)}


_CHECKSUM = dedent('''\
    def checksum(value, crc=0):
        """A checksum of the tensors and numbers in a value, of each tensor the first ones; other objects are left out."""
        if isinstance(value, torch.Tensor) and value.numel():
            crc = zlib.crc32(str(tuple(value.shape)).encode(), crc)
            return zlib.crc32(value.detach().flatten()[:@].cpu().contiguous().view(torch.uint8).numpy(), crc)
        if isinstance(value, (int, float)):
            return zlib.crc32(str(value).encode(), crc)
        parts = vars(value) if dataclasses.is_dataclass(value) else value
        parts = list(parts.values()) if isinstance(parts, Mapping) else parts
        for part in parts[:@] if isinstance(parts, (list, tuple)) else ():
            crc = checksum(part, crc)
        return crc''').replace("@", f"{FIRST:_}")

_COMPARE = dedent('''\
    def compare(what, value):
        """Say at once if the weights, the order of samples or the first batches are not the run's."""
        if RUN.get(what) and checksum(value) != int(RUN[what].pop(0), 16):
            print(
                f"Not the run's {what}: losses will differ. Possible causes: a file that is missing or has changed, "
                "draws without a seed, other versions of libraries, another CPU."
            )
            if what != "weights":
                RUN.clear()  # what is read next differs too''')

_COMPARED = dedent('''\
    def compared(batches):
        """The batches, of which the first are compared with the run's."""
        for batch in batches:
            compare("batches", batch)
            yield batch''')
