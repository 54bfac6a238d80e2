"""Writes truncated backpropagation through time: batches in pieces, the hidden state carried."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec


def pieces(r: ScriptSpec) -> str:
    """The functions that split batches in time and cut off the hidden state."""
    if not r.tbptt:
        return ""
    own = r.hooks is not None and r.hooks.splits
    return "\n\n\n".join([*([] if own else [_split(r)]), _stream(r, own), _DETACHED])


def _split(r: ScriptSpec) -> str:
    return dedent('''\
        def split(batch, length, dim):
            """The batch in pieces of so many time steps, in the same containers."""
            steps = @@

            def cut(value, start):
                if isinstance(value, dict):
                    return {key: cut(part, start) for key, part in value.items()}
                if isinstance(value, (tuple, list)):
                    return type(value)(cut(part, start) for part in value)
                if isinstance(value, torch.Tensor) and value.ndim > dim:
                    return value.narrow(dim, start, min(length, steps - start))
                return value

            return [cut(batch, start) for start in range(0, steps, length)]''').replace("@@", r.train.steps)


def _stream(r: ScriptSpec, own: bool) -> str:
    split = f"split(batch, config.truncated_bptt_steps, {r.settings.tbptt_time_dim})"
    given = "network.tbptt_split_batch(batch, config.truncated_bptt_steps)"
    numbered = r.uses_batch_idx
    head = "for number, batch in enumerate(batches):" if numbered else "for batch in batches:"
    lines = [
        *(["if batch is None:", "    continue"] if r.train.empty else []),
        f"for place, piece in enumerate({given if own else split}):",
        f"    yield {'number, ' if numbered else ''}place == 0, piece",
    ]
    arguments = "batches, config, network" if own else "batches, config"
    doc = "All pieces of all batches, each with whether its batch begins there."
    return "\n".join([f"def pieces({arguments}):", f'    """{doc}"""', f"    {head}", *indented(indented(lines))])


_DETACHED = dedent('''\
    def detached(state):
        """A hidden state, cut off from the graph that made it."""
        if isinstance(state, dict):
            return {key: detached(part) for key, part in state.items()}
        if isinstance(state, (tuple, list)):
            return type(state)(detached(part) for part in state)
        return state.detach() if isinstance(state, torch.Tensor) else state''')


def stream(r: ScriptSpec, batches: str) -> str:
    """The call that yields the pieces."""
    own = r.hooks is not None and r.hooks.splits
    return f"pieces({batches}, config, network)" if own else f"pieces({batches}, config)"


def item(r: ScriptSpec) -> str:
    """The loop variables of the pieces."""
    return "number, first, batch" if r.uses_batch_idx else "first, batch"
