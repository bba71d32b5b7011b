"""Stage servers with a scripted trainer, through the simulated network."""

from p2pswarm.sim.loop import run
from stage.rig import CONFIG, microbatch, rig

from p2pswarm.stage.plain import PlainLoop


def test_two_stages_train_exactly_what_a_plain_loop_trains():
    async def main():
        async with rig() as r:
            for number in (2, 3):
                r.serve(number)
            await r.trainer.until_ready(2)
            for _ in range(3):
                await r.trainer.whole_step()
            return sorted(
                (e[-1].weights._flat for e in r.engines.values()), key=lambda f: f.numbers.start
            )

    flats = run(main(), seed=1)
    plain = PlainLoop(CONFIG)
    for step in range(3):
        for number in range(4 * step, 4 * step + 4):
            plain.add(microbatch(number))
        plain.apply(1.0, 1e-2)
    ours = [p for flat in flats for p in flat.parameters]
    for a, b in zip(ours, plain.flat.parameters, strict=True):
        assert (a - b).abs().max() <= 1e-12 * b.abs().max()
