"""What the paper reports, cell by cell, and the runs that reproduce it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from vcl.benchmarks import StreamOptions
from vcl.runs.config import RunConfig, configure

SPLIT, PERMUTED = "split-mnist", "permuted-mnist"
QUOTED = "The paper quotes it from the method's own publication."
GRAPH = "The paper read it from a graph."
ONE_PASS = "Published with one pass over the data in batches of 10, by SGD, over five runs."
TASK_GIVEN = "It is told at test time which task an input comes from."


@dataclass(frozen=True)
class Cell:
    """One number of the paper, and how to get ours."""

    name: str
    paper: str
    """As the paper prints it, in per cent."""
    benchmark: str
    method: str = "vcl"
    recipe: str = "published"
    num_tasks: int | None = None
    examples: int = 0
    """Training examples of a task; 0 for all."""
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    seeds: int = 1
    """How many runs the paper has, where it says so."""
    note: str = ""
    """What must be known to compare."""

    @property
    def is_own(self) -> bool:
        """Whether it is the paper's own result, not a quoted one."""
        return self.method == "vcl" and self.recipe == "paper"

    def configs(self, seeds: int | None = None, recipe: str | None = None) -> list[RunConfig]:
        """The runs, one core each; `recipe` is for the paper's own results."""
        return [
            configure(
                self.benchmark,
                self.method,
                recipe=(recipe if self.is_own else None) or self.recipe,
                seed=seed,
                threads=1,
                stream=StreamOptions(num_tasks=self.num_tasks, examples=self.examples),
                **self.settings,
            )
            for seed in range(seeds or self.seeds)
        ]


def small(**settings: Any) -> Mapping[str, Any]:
    return MappingProxyType({"hidden": (100, 100), **settings})


def wide(units: int) -> Mapping[str, Any]:
    return MappingProxyType({"hidden": (units, units)})


TABLE_1 = (
    Cell("VCL", "98.5 ± 0.4", SPLIT, recipe="paper", seeds=10),
    Cell("VCL + 40 random coreset", "98.2 ± 0.4", SPLIT, recipe="paper", seeds=10, settings={"coreset": 40}),
    Cell("Previous VCL", "97.0", SPLIT, recipe="previous", note="{256, 256}, full batch."),
    Cell("Previous VCL + 40 random coreset", "98.4", SPLIT, recipe="previous", settings={"coreset": 40}),
    Cell("EWC", "63.1", SPLIT, "ewc", note="Quoted from Nguyen et al. (2018)."),
    Cell("SI", "98.9", SPLIT, "si", note="Quoted from Nguyen et al. (2018)."),
)
TABLE_2 = (
    Cell("VCL", "93 ± 1", PERMUTED, recipe="paper", seeds=5, settings=small()),
    Cell("VCL + 200 random coreset", "94.6 ± 0.3", PERMUTED, recipe="paper", seeds=5, settings=small(coreset=200)),
    Cell("Previous VCL", "90", PERMUTED, recipe="previous", settings=small()),
    Cell("Previous VCL + 200 random coreset", "93", PERMUTED, recipe="previous", settings=small(coreset=200)),
    Cell(
        "Kronecker-factored Laplace, 50 tasks",
        "90",
        PERMUTED,
        "laplace",
        num_tasks=50,
        settings=small(),
        note=QUOTED,
    ),
    Cell("Kronecker-factored Laplace", "96", PERMUTED, "laplace", settings=small(), note=GRAPH),
    Cell("EWC, {2000, 2000}", "97", PERMUTED, "ewc", settings=wide(2000), note=QUOTED),
    Cell("EWC", "84", PERMUTED, "ewc", settings=small(), note="Quoted from Nguyen et al. (2018)."),
    Cell("SI, {2000, 2000}", "97", PERMUTED, "si", settings=wide(2000), note=QUOTED),
    Cell("SI", "86", PERMUTED, "si", settings=small(), note="Quoted from Nguyen et al. (2018)."),
    Cell("CLNP, {2000, 2000}", "98.42 ± 0.04", PERMUTED, "clnp", settings=wide(2000), note=TASK_GIVEN),
    Cell(
        "A-GEM, {256, 256}, 20 tasks",
        "89.1 ± 0.14",
        PERMUTED,
        "agem",
        num_tasks=20,
        settings=wide(256),
        note=ONE_PASS,
    ),
    Cell("A-GEM, {256, 256}", "92.3", PERMUTED, "agem", settings=wide(256), note=f"{GRAPH} {ONE_PASS}"),
    Cell(
        "GEM, 20 tasks",
        "80",
        PERMUTED,
        "gem",
        num_tasks=20,
        examples=1000,
        settings=small(),
        note="As published: 1,000 examples a task, one pass in batches of 10, by SGD.",
    ),
    Cell("BLLL-REG", "92.2", PERMUTED, "ucb", settings=small(), note=QUOTED),
    Cell(
        "GEM, {256, 256}, 20 tasks", "89.5 ± 0.48", PERMUTED, "gem", num_tasks=20, settings=wide(256), note=ONE_PASS
    ),
    Cell("GEM, {256, 256}", "93.1", PERMUTED, "gem", settings=wide(256), note=f"{GRAPH} {ONE_PASS}"),
    Cell(
        "RWalk, {256, 256}, 20 tasks",
        "85.7 ± 0.56",
        PERMUTED,
        "rwalk",
        num_tasks=20,
        settings=wide(256),
        note=ONE_PASS,
    ),
    Cell("RWalk, {256, 256}", "91.6", PERMUTED, "rwalk", settings=wide(256), note=f"{GRAPH} {ONE_PASS}"),
    Cell(
        "Progressive, {256, 256}, 20 tasks",
        "93.5 ± 0.07",
        PERMUTED,
        "progressive",
        num_tasks=20,
        settings=wide(256),
        note=f"{ONE_PASS} {TASK_GIVEN}",
    ),
    Cell(
        "Progressive, {256, 256}",
        "94.6",
        PERMUTED,
        "progressive",
        settings=wide(256),
        note=f"{GRAPH} {ONE_PASS} {TASK_GIVEN}",
    ),
    Cell("VCL, {250, 100}", "95.5", PERMUTED, recipe="paper", settings={"hidden": (250, 100)}, note="Section 4.2."),
    Cell(
        "All data together",
        "97",
        PERMUTED,
        "joint-vcl",
        "fast",
        settings=small(),
        note="Section 3.1; here with the settings of fast.",
    ),
)
TABLES = {"table1": TABLE_1, "table2": TABLE_2}
OWN = tuple(cell for table in TABLES.values() for cell in table if cell.is_own and cell.seeds > 1)
"""The runs behind the paper's figures and its counts of units: both benchmarks, without and with a coreset."""
