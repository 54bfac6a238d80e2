"""Defines MuonWithAdamW: one optimizer, which trains the matrices of hidden layers by Muon and all
else by AdamW.

An exported script contains this file's text, so it needs nothing but torch.
Sources: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024); Liu et
al., "Muon is Scalable for LLM Training" (2025), whose scale of an update lets both have one rate.
"""

from __future__ import annotations

import torch


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices of hidden layers, and AdamW for all other parameters, with one learning
    rate: an update of Muon is scaled to the size of one of AdamW.
    """

    def __init__(
        self,
        params: list[dict[str, object]],
        lr: float = 1e-3,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
    ) -> None:
        """params: the groups that `groups` makes. momentum, nesterov, ns_steps: of Muon. betas,
        eps: of AdamW.
        """
        usual = {"lr": lr, "weight_decay": weight_decay, "decoupled_weight_decay": True}
        super().__init__(params, {**usual, "muon": False})
        of_muon = {"momentum": momentum, "nesterov": nesterov, "ns_steps": ns_steps}
        of_adamw = {"betas": betas, "eps": eps}
        for group in self.param_groups:
            for name, value in (of_muon if group["muon"] else of_adamw).items():
                group.setdefault(name, value)
            if group["muon"]:
                group["adjust_lr_fn"] = "match_rms_adamw"
        self._make_parts()

    @staticmethod
    def groups(
        network: torch.nn.Module, parameters: list[torch.nn.Parameter]
    ) -> list[dict[str, object]]:
        """The parameters in two groups, of which Muon trains the first.

        That has the weights with two dimensions, without those of embeddings, and without the
        output layer: the last such weight in the order in which the network has its modules.
        """
        embeddings = torch.nn.Embedding, torch.nn.EmbeddingBag
        matrices, embedded = [], set()
        for module in network.modules():
            for weight in module.parameters(recurse=False):
                if weight.ndim == 2:
                    matrices.append(weight)
                if isinstance(module, embeddings):
                    embedded.add(id(weight))
        hidden = {id(weight) for weight in matrices} - embedded - {id(w) for w in matrices[-1:]}
        groups: dict[bool, list[torch.nn.Parameter]] = {True: [], False: []}
        for parameter in parameters:
            groups[id(parameter) in hidden].append(parameter)
        return [{"params": group, "muon": muon} for muon, group in groups.items() if group]

    def _make_parts(self) -> None:
        """Make the optimizer of each kind of group; the groups have its arguments."""
        kinds = {True: torch.optim.Muon, False: torch.optim.AdamW}
        self.parts: dict[bool, torch.optim.Optimizer] = {}
        for muon, kind in kinds.items():
            groups = [group for group in self.param_groups if group["muon"] == muon]
            if groups:
                self.parts[muon] = kind(groups)
        self._share()

    def _share(self) -> None:
        """Let both parts work on the groups and the state of this optimizer."""
        for muon, inner in self.parts.items():
            inner.state = self.state
            inner.param_groups = [group for group in self.param_groups if group["muon"] == muon]

    def __setstate__(self, state: dict[str, object]) -> None:
        super().__setstate__(state)
        self._make_parts()

    def step(self, closure=None):
        """Take a step with both."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._share()
        for inner in self.parts.values():
            inner.step()
        return loss
