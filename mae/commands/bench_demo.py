"""``make bench-demo``: the demo's numbers over several pretraining seeds and label subsets.

One run shows one draw of luck.  This repeats pretraining and probe by the same verbs and prints,
for each row of the probe's table, the mean and the range.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import mean

from mae.commands.demo import RECIPE, data_steps, run_verb, write_tiles
from mae.evaluate.result import ProbeResult, load_probe

RESULT_FILE = "bench.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Repeat the demo's pretraining and probe, print a table, write ``bench.json``.

    Args:
        argv: Command line; None takes it from the process.
    """
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("demo-bench"))
    parser.add_argument("--seeds", type=int, default=3, help="pretraining runs")
    parser.add_argument("--label-seeds", type=int, default=3, help="label subsets per run")
    options = parser.parse_args(argv)
    write_tiles(options.out)
    for step in data_steps(options.out):
        if not step.product.exists():
            run_verb(step.command)
    results = [
        result
        for seed in range(options.seeds)
        for result in _one_run(options.out, seed, label_seeds=range(options.label_seeds))
    ]
    summary = summarise(results)
    path = options.out / RESULT_FILE
    path.write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    _print(summary)
    print(f"numbers: {path}")


def _one_run(root: Path, seed: int, *, label_seeds: Iterable[int]) -> list[ProbeResult]:
    shards, run = root / "shards", root / f"run-{seed}"
    if not (run / "encoder" / "encoder.safetensors").exists():
        command = ["pretrain", RECIPE, "--data", str(shards / "unlabeled"), "--out", str(run)]
        run_verb([*command, "--resume", "auto", "--seed_everything", str(seed)])
    results = []
    for label_seed in label_seeds:
        path = run / f"probe-{label_seed}.json"
        if not path.exists():
            command = ["probe", str(run), "--data", str(shards / "labeled")]
            run_verb([*command, "--seed", str(label_seed), "--out", str(path)])
        results.append(load_probe(path))
    return results


def summarise(results: Sequence[ProbeResult]) -> dict[str, dict[str, dict[str, float]]]:
    """Return budget -> row -> mean, low and high of the balanced accuracy over all results.

    Rows that need no pretraining repeat with each pretraining seed and weigh in equally.
    """
    values: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        for budget in result.budgets:
            for row in budget.rows:
                values[budget.budget][row.name].append(row.balanced_accuracy)
    return {
        budget: {
            name: {"mean": mean(found), "low": min(found), "high": max(found), "n": len(found)}
            for name, found in rows.items()
        }
        for budget, rows in values.items()
    }


def _print(summary: dict[str, dict[str, dict[str, float]]]) -> None:
    for budget, rows in summary.items():
        print(f"\n{budget}: balanced accuracy in percent, mean [lowest, highest]")
        width = max(map(len, rows))
        for name, row in rows.items():
            low, high = 100 * row["low"], 100 * row["high"]
            print(f"  {name:<{width}}  {100 * row['mean']:.1f} [{low:.1f}, {high:.1f}]")


if __name__ == "__main__":
    main()
