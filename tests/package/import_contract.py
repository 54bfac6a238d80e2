"""Adds a contract to import-linter (.importlinter): no circle of imports, those of types and within functions included."""

from __future__ import annotations

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class NoCircles(Contract):
    """No module imports itself, also not through others."""

    root = fields.StringField()

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        inside = {name for name in graph.modules if name.partition(".")[0] == self.root}
        left = {name: graph.find_modules_directly_imported_by(name) & inside for name in inside}
        # these import nothing that may be in a circle
        while free := {name for name, imported in left.items() if not imported}:
            left = {name: imported - free for name, imported in left.items() if name not in free}
        # and nothing imports these
        while free := left.keys() - {name for imported in left.values() for name in imported}:
            left = {name: imported for name, imported in left.items() if name not in free}
        return ContractCheck(kept=not left, metadata={"left": left})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for name, imported in sorted(check.metadata["left"].items()):
            output.print_error(f"{name} -> {', '.join(sorted(imported))}")
