"""How a tensor becomes bytes and a tensor again: below the stages only this knows torch."""
