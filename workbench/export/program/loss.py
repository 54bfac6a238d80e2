"""Writes the forward pass: how a batch becomes a loss."""

from __future__ import annotations

from textwrap import dedent

from workbench.export.program.lines import indented
from workbench.export.script_spec import ScriptSpec


def forward(r: ScriptSpec) -> str:
    """A function for a model with a loss, a module for an object that has a `training_step`."""
    if r.hooks is not None:
        return _step(r)
    lines = _without_loss(r) if r.given("loss") is None else _with_loss(r)
    names = {"loss": "loss", "weight": "weight", "output": "the output", "target": "the target", "hiddens": "the state after it"}
    listed = [names[name] for name in returned(r)]
    listed[0] = "loss and weight of a batch" if "weight" in returned(r) else "loss of a batch"
    listed = [name for name in listed if name != "weight"]
    said = listed[0] if len(listed) == 1 else f"{', '.join(listed[:-1])}{',' if len(listed) > 2 else ''} and {listed[-1]}"
    doc = f"The {said}{'; None where there is none' if r.may_skip_batches else ''}."
    head = "def forward(model, batch, hiddens=None):" if r.tbptt else "def forward(model, batch):"
    text = "\n".join([head, f'    """{doc}"""', *indented(lines)])
    return f"{text}\n\n\n{_TOGETHER}" if r.trains_loss else text


_TOGETHER = dedent('''\
    class Together(torch.nn.Module):
        """The model and the loss as one module, so that DistributedDataParallel follows the parameters of both."""

        def __init__(self, *parts):
            super().__init__()
            self.parts = torch.nn.ModuleList(parts)

        def forward(self, batch, *state):
            return forward(self.parts[0], batch, *state)''')


def returned(r: ScriptSpec) -> list[str]:
    """What a forward pass returns, by name."""
    weighs = r.reports_weight or (r.hooks is None and r.step.reports_weight)  # a validation weighs by it too
    names = ["loss", *(["weight"] if weighs else [])]
    if r.hooks is None and r.has_metrics:
        names += ["output", "target"]
    return [*names, *(["hiddens"] if r.tbptt else [])]


def taken(r: ScriptSpec, call: str) -> list[str]:
    """The lines that take a training batch's loss (and what comes with it) from a call of the forward pass."""
    needed = {"loss", "hiddens", *(["weight"] if r.reports_weight else [])}
    wanted = [name if name in needed else "_" for name in returned(r)]
    if len(wanted) == 1:
        return [f"loss = {call}", *(["if loss is None:", "    continue"] if r.may_skip_batches else [])]
    if r.may_skip_batches:
        return [f"found = {call}", "if found is None:", "    continue", f"{', '.join(wanted)} = found"]
    if set(wanted[1:]) == {"_"}:
        return [f"loss = {call}[0]"]
    return [f"{', '.join(wanted)} = {call}"]


def _step(r: ScriptSpec) -> str:
    head = dedent('''\
        class TrainingStep(torch.nn.Module):
            """`training_step` as a forward pass, so that DistributedDataParallel can wrap it."""

            def __init__(self, module):
                super().__init__()
                self.module = module

            def forward(self, *batch@@):
        ''').replace("@@", ", **state" if r.extra_arguments else "")
    kept = "result = self.result" if r.reads_outputs else "result"
    lines = [f"{kept} = self.module.training_step(*batch{', **state' if r.extra_arguments else ''})"]
    parts = [f'result["{name}"]' for name in returned(r)]
    if len(parts) > 1:
        lines += ["if result is None:", "    return None"] if r.may_skip_batches else []
        lines.append(f"return {', '.join(parts)}")
    else:
        lines.append('return result["loss"] if isinstance(result, dict) else result')
    return head + "\n".join(indented(indented(lines)))


def _with_loss(r: ScriptSpec) -> list[str]:
    key = r.batch.removeprefix("dict:")
    state = ", hiddens" if r.tbptt else ""
    if r.batch == "pair":
        lines, output = ["inputs, target = batch"], f"model(inputs{state})"
    elif r.batch == "tuple":
        lines, output = ["*inputs, target = batch"], f"model(*inputs{state})"
    else:
        lines = [
            f'inputs = {{name: value for name, value in batch.items() if name != "{key}"}}',
            f'target = batch["{key}"]',
        ]
        output = f"model(**inputs{', hiddens=hiddens' if r.tbptt else ''})"
    names = returned(r)
    if r.tbptt:
        lines.append(f"output, hiddens = {output}")
    elif "output" in names:
        lines.append(f"output = {output}")
    loss = f"loss_function({'output' if r.tbptt or 'output' in names else output}, target)"
    if r.step.in_dict and not r.may_skip_batches:
        loss += '["loss"]'
    if names == ["loss"] and not (r.step.in_dict and r.may_skip_batches):
        return [*lines, f"return {loss}"]
    if not (r.may_skip_batches or "weight" in names):
        return [*lines, f"return {loss}, {', '.join(names[1:])}"]
    lines.append(f"result = {loss}")
    lines += ["if result is None:", "    return None"] if r.may_skip_batches else []
    plain = 'result["loss"]' if r.step.in_dict else "result"
    own = ['result["loss"]', 'result["weight"]'] if "weight" in names else [plain]
    return [*lines, f"return {', '.join([*own, *names[len(own) :]])}"]


def _without_loss(r: ScriptSpec) -> list[str]:
    key = r.batch.removeprefix("dict:")
    by_name = r.batch.startswith("dict:")
    arguments = "**batch" if by_name else "batch" if r.batch == "single" else "*batch"
    state = ", hiddens=hiddens" if by_name else ", hiddens"
    if r.tbptt:
        called = f"output, hiddens = model({arguments}{state})"
    else:
        called = f"output = model({arguments})"
    loss = 'output["loss"] if isinstance(output, dict) else output.loss'
    names = returned(r)
    if len(names) == 1:
        return [called, f"return {loss}"]
    target = "batch[-1]" if r.batch == "tuple" else f'batch["{key}"]' if by_name and key else "None"
    parts = ["loss", *(target if name == "target" else name for name in names[1:])]
    return [called, f"loss = {loss}", f"return {', '.join(parts)}"]
