"""Writes a run on several processes: rounds that all take part in, and one mean over their batches.

The arithmetic is that of `engine/distributed/ddp.py`: a batch counts as its share of all batches in a round, and a
process that has come to the end of its data takes part with zero weight.
"""

from __future__ import annotations

from textwrap import dedent

from workbench.export.inputs.collect import Data
from workbench.export.program.lightning import hooks
from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec

# ---- functions --------------------------------------------------------------------------------------------------


def share(r: ScriptSpec) -> str:
    """The class that shards a loader's batches over the processes."""
    if not r.distributed:
        return ""
    parts = [
        dedent('''\
        class Share:
            """Of batches that all processes go through alike, those of this one."""

            def __init__(self, batches, accelerator):
                self.batches, self.first, self.stride = batches, accelerator.process_index, accelerator.num_processes

            def __len__(self):
                return (len(self.batches) + self.stride - 1) // self.stride

            def __iter__(self):
                batches = iter(self.batches)
                while dealt := list(itertools.islice(batches, self.stride)):
                    if len(dealt) > self.first:
                        yield dealt[self.first]''')
        if not r.settings.drop_last
        else _WHOLE
    ]
    if any(data.draws for data in r.loaders):
        parts.append(_ALIKE)
    return "\n\n\n".join(parts)


_WHOLE = dedent('''\
    class Share:
        """Of batches that all processes go through alike, those of this one. `whole`: not where some would have none."""

        def __init__(self, batches, accelerator, whole=False):
            self.batches, self.first, self.stride = batches, accelerator.process_index, accelerator.num_processes
            self.whole = whole

        def __len__(self):
            rounds, rest = divmod(len(self.batches), self.stride)
            return rounds + (rest > 0 and not self.whole)

        def __iter__(self):
            batches = iter(self.batches)
            while dealt := list(itertools.islice(batches, self.stride)):
                if len(dealt) > self.first and (len(dealt) == self.stride or not self.whole):
                    yield dealt[self.first]''')


_ALIKE = dedent('''\
    class Alike:
        """Batches whose making draws random numbers: here it draws some that are the same in all processes."""

        def __init__(self, batches, seed):
            self.batches = batches
            self.states = (
                random.Random(seed).getstate(),
                np.random.RandomState(seed).get_state(),
                torch.Generator().manual_seed(seed).get_state(),
            )

        def __len__(self):
            return len(self.batches)

        @contextlib.contextmanager
        def drawing(self):
            own = random.getstate(), np.random.get_state(), torch.get_rng_state()
            random.setstate(self.states[0])
            np.random.set_state(self.states[1])
            torch.set_rng_state(self.states[2])
            yield
            self.states = random.getstate(), np.random.get_state(), torch.get_rng_state()
            random.setstate(own[0])
            np.random.set_state(own[1])
            torch.set_rng_state(own[2])

        def __iter__(self):
            nothing = object()
            with self.drawing():
                batches = iter(self.batches)
            while True:
                with self.drawing():
                    batch = next(batches, nothing)
                if batch is nothing:
                    return
                yield batch''')


def dealt(r: ScriptSpec, data: Data, batches: str) -> list[str]:
    """The arguments of a `Share` of a loader's batches."""
    whole = ["whole=True"] if data is r.train and r.settings.drop_last and data.kind != "batches" else []
    return [f"Alike({batches}, config.seed)" if data.draws else batches, "accelerator", *whole]


def rounds(r: ScriptSpec) -> str:
    """The generator of updates, and the mean of gradients."""
    if not r.distributed:
        return ""
    counted = f"[{r.train.count} for {_item(r)} in window]" if r.mean else "[1] * len(window)"
    text = dedent('''\
        def rounds(batches, size, accelerator):
            """The batches of each update, at most `size`; none where only other processes have any left.

            With them: what each weighs, what those of all processes weigh, and whether all have any.
            """
            batches = iter(batches)
            while True:
                window = list(itertools.islice(batches, size))
                weights = @counted
                told = torch.tensor([sum(weights), len(window) > 0], dtype=torch.float64, device=accelerator.device)
                whole, present = accelerator.reduce(told, "sum").tolist()
                if not present:
                    return
                yield window, weights, whole, present == accelerator.num_processes


        def mean_gradients(parameters, accelerator):
            """Gradients become their means over the processes; what has none in any of them stays without."""
            told = torch.tensor([float(p.grad is not None) for p in parameters], device=accelerator.device)
            for parameter, there in zip(parameters, accelerator.reduce(told, "sum").tolist()):
                if there:
                    own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    parameter.grad = accelerator.reduce(own, "mean")''')
    return text.replace("@counted", counted)


# ---- lines of main ----------------------------------------------------------------------------------------------


def process_note(r: ScriptSpec) -> list[str]:
    """A line that is printed where there are more or fewer processes than the run had."""
    if r.single_process_reason:
        return []
    made = "1 process" if r.ranks == 1 else f"{r.ranks} processes"
    times = "{now}" if r.ranks == 1 else f"{{now}}/{r.ranks}"
    return [
        f"if (now := accelerator.num_processes) != {r.ranks}:",
        f'    accelerator.print(f"Made on {made}; with {{now}} each update takes {times} times as many samples.")',
    ]


def seeded(r: ScriptSpec) -> list[str]:
    """The lines after which each process draws its own random numbers; everything before them is the same in all."""
    if not r.distributed:
        return []
    return [
        "if accelerator.process_index:  # from here on each process draws random numbers of its own",
        "    own_seed = np.random.SeedSequence([config.seed, accelerator.process_index])",
        "    set_seed(int(own_seed.generate_state(1)[0]))",
    ]


def wrapped(r: ScriptSpec, model: str) -> list[str]:
    """The model, or the training step, as DistributedDataParallel; not where parameters may have no gradient."""
    return ["network.to(accelerator.device)"] if r.partial else [f"wrapped = accelerator.prepare_model({model})"]


def head(r: ScriptSpec, batches: str, size: str) -> str:
    """The head of the loop over an epoch's updates."""
    return f"for window, weights, whole, complete in rounds({batches}, {size}, accelerator):"


def model(r: ScriptSpec) -> str:
    """The expression for what a batch goes forward through."""
    alone = "network" if r.hooks is None and not r.trains_loss else "training"
    return alone if r.partial else "through"


def gradient(r: ScriptSpec, weighted: list[str]) -> list[str]:
    """The lines of an update's gradient and loss. weighted: forward and backward of a batch at its share."""
    alone = "network" if r.hooks is None and not r.trains_loss else "training"
    item = _item(r)
    choice = [
        "last = complete and place == len(window) - 1",
        f"through = wrapped if last else {alone}  # wrapped: gradients become their mean over the processes",
    ]
    each = [hooks.to_device(r), *([] if r.partial else choice), *weighted, "loss = loss + part.detach()"]
    reduced = ["mean_gradients(parameters, accelerator)"]
    return [
        "unit = accelerator.num_processes / whole",
        f"loss = torch.zeros((), {'dtype=torch.float64, ' if r.double else ''}device=accelerator.device)",
        f"for place, {f'({item})' if ',' in item else item} in enumerate(window):",
        *indented(each),
        *(reduced if r.partial else ["if not complete:", *indented(reduced)]),
        'loss = accelerator.reduce((loss / unit).double(), "sum").to(loss.dtype) / whole',
    ]


SHARE = "weights[place] * unit"
"""The expression for the weight of a batch of a window."""


def _item(r: ScriptSpec) -> str:
    return "number, batch" if r.uses_batch_idx else "batch"


def mean_statistics() -> list[str]:
    """The lines that average batch-norm statistics over the batches of all processes, with equal weights."""
    return [
        "for layer in momenta:  # each process has seen its share of the batches",
        "    if layer.num_batches_tracked is None:",
        "        continue",
        "    seen = layer.num_batches_tracked.double()",
        '    whole = accelerator.reduce(seen, "sum")',
        "    for statistic in (layer.running_mean, layer.running_var):",
        '        statistic.copy_(accelerator.reduce(statistic * (seen / whole).item(), "sum"))',
        "    layer.num_batches_tracked.copy_(whole)",
    ]


# ---- how to start it --------------------------------------------------------------------------------------------


def start(r: ScriptSpec, script: str) -> str:
    """The lines at the script's head that say how to start it so that it repeats the run."""
    if not r.distributed:
        return f"    python {script}\n    accelerate launch {script}    (or torchrun; on every device there is)"
    devices = r.settings.devices
    visible = f"CUDA_VISIBLE_DEVICES={','.join(map(str, devices))} " if isinstance(devices, tuple) else ""
    nodes, where = "", ""
    if r.settings.num_nodes > 1:
        nodes = f"--nnodes {r.settings.num_nodes} --rdzv-backend c10d --rdzv-endpoint HOST:29500 "
        where = f", on each of {r.settings.num_nodes} machines"
    again = f"    (as the run was made: {r.ranks} processes{where})"
    return f"    {visible}torchrun {nodes}--nproc-per-node {r.local_ranks} {script}{again}\n    python {script}"
