"""What computing in bfloat16 costs in quality and brings in speed, against the weights' own dtype.

    python bench/precision.py --text docs --d-model 512 --steps 300

Both train the same model side by side (`side_by_side.py`). It prints the training loss now and
then, and at the end the held-out loss of both, each in its own precision, and the time of a step.
"""

import dataclasses
import json

from side_by_side import base_run, parser_of, train_side_by_side


def main() -> None:
    """Train both, and compare."""
    options = parser_of(__doc__.splitlines()[0]).parse_args()
    run = base_run(options)
    ways = {"full": run, "bf16": dataclasses.replace(run, precision="bf16")}
    found = train_side_by_side(ways, options)
    full, bf16 = found["full"], found["bf16"]
    worse = bf16.held_out / full.held_out - 1
    print(f"held-out loss: full {full.held_out:.5f}, bf16 {bf16.held_out:.5f} ({worse:+.3%})")
    faster = full.step_s / bf16.step_s
    print(f"a step: {full.step_s:.3f} s, {bf16.step_s:.3f} s ({faster:.2f} times as fast)")
    if options.json:
        told = {
            "held_out": {name: each.held_out for name, each in found.items()},
            "step_s": {name: each.step_s for name, each in found.items()},
            "relative": worse,
            "steps": options.steps,
        }
        options.json.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
