"""A training script as data: where its settings, optimizer and step are. It is parsed, never run.

>>> script = Script.of("train.py", "lr = 1e-3\\nopt = torch.optim.SGD(net.parameters(), lr=lr)\\n")
>>> [(place.line, place.value) for place in script.settings("lr")], script.optimizers[0].name
([(1, 0.001)], 'opt')
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from torchdoctor.consulting.question import ConsultError

SIZE_LIMIT = 2**20
OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "Adamax", "NAdam", "RAdam", "RMSprop", "LBFGS", "Adafactor", "Lion")
ARGUMENTS = frozenset({"TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "DPOConfig"})
"""Calls that take the settings of a trainer."""


@dataclass(frozen=True)
class Place:
    """A piece of the script that can be replaced: lines from 1, columns in bytes from 0."""

    line: int
    column: int
    end_line: int
    end_column: int
    value: float | bool = 0.0
    leading: bool = False
    """Whether it is an argument of the only optimizer or of the trainer: preferred if there are several places."""
    option: str = ""
    """The command-line option whose default it is."""


@dataclass(frozen=True)
class Optimizer:
    """An optimizer that the script creates."""

    name: str
    call: ast.Call
    parameters: str
    """The source of its first argument, such as "model.parameters()"; empty for anything else."""


@dataclass(frozen=True)
class Step:
    """The statement that calls the optimizer's step."""

    node: ast.Expr
    optimizer: str
    scaler: str
    loss: str
    """The variable whose backward() comes before it in the same block; empty if it is not certain."""
    backward: int
    """The line of the backward()."""


@dataclass(frozen=True)
class Script:
    """A parsed script."""

    name: str
    text: str
    tree: ast.Module

    @classmethod
    def of(cls, name: str, text: str) -> Script:
        """Parse source text."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # such as those about invalid escapes in strings
                return cls(name, text, ast.parse(text))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ConsultError(f"{name} cannot be parsed as Python: {str(error)[:200]}.") from error

    @classmethod
    def read(cls, path: Path) -> Script:
        """Parse a file."""
        try:
            if path.stat().st_size > SIZE_LIMIT:
                raise ConsultError(f"{path} is larger than 1 MB: give the file with the training loop.")
            text = path.read_bytes().decode("utf-8")
        except OSError as error:
            raise ConsultError(f"cannot read the script {path}: {error.strerror or error}.") from error
        except UnicodeDecodeError as error:
            raise ConsultError(f"{path} is not UTF-8: {error.reason} at byte {error.start}.") from error
        if "\ufeff" in text[:1] or "\r" in text.replace("\r\n", ""):
            raise ConsultError(f"{path} has a byte-order mark or bare carriage returns: save it as plain UTF-8.")
        if any(ord(letter) < 32 for letter in str(path)):
            raise ConsultError("the script's path contains control characters: rename it.")
        return cls.of(str(path), text)

    @property
    def lines(self) -> list[str]:
        """Its lines, split only at newlines, as Python counts them."""
        return self.text.removesuffix("\n").split("\n") if self.text else []

    def line(self, number: int) -> str:
        """A line without its line ending."""
        return self.lines[number - 1].rstrip("\r")

    def source(self, node: ast.AST) -> str:
        """The text of a node."""
        return ast.get_source_segment(self.text, node) or ""

    @property
    def optimizers(self) -> list[Optimizer]:
        """The optimizers that are assigned to a name or an attribute."""
        found = []
        for target, call in self.made():
            if called(call) in OPTIMIZERS:
                first = self.source(call.args[0]) if call.args else ""
                plain = first.endswith(".parameters()") and first.count("(") == 1
                found.append(Optimizer(self.source(target), call, first if plain else ""))
        return found

    def made(self) -> Iterator[tuple[ast.expr, ast.Call]]:
        """Every call whose result is assigned to a name or an attribute, with that target."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.Call):
                yield node.targets[0], node.value

    @property
    def imported(self) -> set[str]:
        """The modules it imports, or imports from."""
        found = {alias.name for node in ast.walk(self.tree) if isinstance(node, ast.Import) for alias in node.names}
        return found | {node.module or "" for node in ast.walk(self.tree) if isinstance(node, ast.ImportFrom)}

    def settings(self, *names: str) -> list[Place]:
        """Every literal number or flag that is assigned to one of these names."""
        leading = {id(item.call) for item in self.optimizers} if len(self.optimizers) == 1 else set()
        found: list[Place] = []
        for node in ast.walk(self.tree):
            option = _option(node)
            for value, main in _values(node, names, leading):
                place = literal(value, leading=main)
                if place is not None:
                    found.append(replace(place, option=option))
        return sorted(found, key=lambda item: (item.line, item.column))

    def functions_around(self, node: ast.AST) -> list[ast.AST]:
        """The functions that contain a node, innermost first."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
        around = [item for item in ast.walk(self.tree) if isinstance(item, kinds) and node in ast.walk(item)]
        return [item for item in reversed(around) if item is not node]

    def reaches(self, name: str, made: ast.AST, used: ast.AST) -> bool:
        """Whether a name bound next to one node is also valid next to another, or is an argument there.

        >>> text = "net = make()\\ndef train(model, opt):\\n    opt.step()\\n"
        >>> script = Script.of("train.py", text)
        >>> step, made = script.calls("step")[0], script.calls("make")[0]
        >>> [script.reaches(name, made, step) for name in ("net", "model")], script.reaches("net", step, made)
        ([True, True], False)
        """
        inside, around = self.functions_around(made)[:1], self.functions_around(used)
        arguments = {item.arg for function in around[:1] for item in ast.walk(function) if isinstance(item, ast.arg)}
        return name in arguments or not inside or inside[0] in around

    def calls(self, *names: str) -> list[ast.Call]:
        """Every call of a function or method with one of these names."""
        return [node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and called(node) in names]

    def steps(self) -> list[Step]:
        """Every statement that steps an optimizer after a backward() in the same function, also every n-th time."""
        names = {item.name for item in self.optimizers}
        functions = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [step for scope in (self.tree, *functions) for step in self._steps(scope.body, names)]

    def _steps(self, body: list[ast.stmt], names: set[str]) -> Iterator[Step]:
        loss, backward, inside = "", 0, body
        for statement, block in _statements(body):
            if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
                continue
            call = statement.value
            owner = self.source(call.func.value) if isinstance(call.func, ast.Attribute) else ""
            if called(call) == "backward":
                loss = owner if owner.isidentifier() and not call.args else ""  # accelerator.backward(loss)
                backward, inside = statement.lineno, block
            elif called(call) == "step" and backward:
                given = self.source(call.args[0]) if call.args else ""
                own = loss if block is inside else ""
                if owner in names or (not names and "opt" in owner.lower()):
                    yield Step(statement, owner, "", own, backward)
                elif "scaler" in owner.lower() and (given in names or "opt" in given.lower()):
                    yield Step(statement, given, owner, own, backward)


def called(call: ast.Call) -> str:
    """The name of the called function or method."""
    return (
        call.func.attr
        if isinstance(call.func, ast.Attribute)
        else call.func.id
        if isinstance(call.func, ast.Name)
        else ""
    )


def _statements(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, list[ast.stmt]]]:
    """The statements of a block and its nested blocks, in order, each with its block; without nested functions."""
    for statement in body:
        yield statement, body
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for name in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(statement, name, []))


def _values(node: ast.AST, names: tuple[str, ...], leading: set[int]) -> Iterator[tuple[ast.expr, bool]]:
    """The values that a node assigns to one of these names, and whether they are preferred (`Place.leading`)."""
    match node:
        case ast.Assign(targets=[ast.Name(id=name) | ast.Attribute(attr=name)], value=value) if name in names:
            yield value, False
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value) if name in names:
            yield value, False
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value in names:
                    yield value, False
        case ast.Call():
            yield from _arguments(node, names, leading)
        case ast.arguments(args=positional, defaults=defaults, kwonlyargs=keyed, kw_defaults=keyed_defaults):
            pairs = [*zip(positional[len(positional) - len(defaults) :], defaults, strict=True)]
            pairs += [pair for pair in zip(keyed, keyed_defaults, strict=True) if pair[1] is not None]  # type: ignore[misc]
            yield from ((value, False) for argument, value in pairs if argument.arg in names)


def _arguments(call: ast.Call, names: tuple[str, ...], leading: set[int]) -> Iterator[tuple[ast.expr, bool]]:
    main = id(call) in leading or called(call) in ARGUMENTS
    for keyword in call.keywords:
        if keyword.arg in names:
            yield keyword.value, main
    if _option(call).lstrip("-").replace("-", "_") in names:
        yield from ((keyword.value, False) for keyword in call.keywords if keyword.arg == "default")


def _option(node: ast.AST) -> str:
    """The command-line option that a call adds; empty for anything else."""
    if isinstance(node, ast.Call) and called(node) == "add_argument" and node.args:
        name = node.args[0]
        return str(name.value) if isinstance(name, ast.Constant) else ""
    return ""


def literal(node: ast.expr, *, leading: bool = False) -> Place | None:
    """The place of a literal number or flag; None for anything else."""
    if not isinstance(node, ast.Constant) or not isinstance(node.value, bool | int | float):
        return None
    end_line, end_column = node.end_lineno, node.end_col_offset
    if end_line is None or end_column is None:
        return None
    return Place(node.lineno, node.col_offset, end_line, end_column, node.value, leading)
