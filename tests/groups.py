"""Files whose tests share what takes seconds to make, and the scheduling that knows of them."""

from xdist.scheduler import LoadScopeScheduling

GROUPS = {
    "syntax trees": ("test_architecture.py", "test_nothing_executable.py"),
    "functions that numba compiles": (
        "bench/test_dtfm_program.py",
        "bench/test_genetic.py",
        "bench/test_papers.py",
        "commands/plan/test_devices.py",
        "commands/plan/test_dtfm.py",
        "commands/plan/test_swarm.py",
        "kernels/test_dither_kernels.py",
        "kernels/test_grid_kernels.py",
        "kernels/test_jit.py",
        "plan/test_dtfm.py",
        "plan/test_exchanges.py",
        "plan/test_lower_bound.py",
        "plan/test_pipeline_search.py",
        "plan/test_pipelined.py",
        "plan/test_search.py",
    ),
    "wheel and sdist": ("test_release.py",),
    "routers": ("natlab/test_profiles.py",),
    "two devices": ("server/devices/test_group_stage.py",),
    "a hub's files": ("models/library/test_weight_files.py",),
    "document masks": ("models/test_document_positions.py",),
    "tokenizers": (
        *("data/test_tokenizer.py", "data/test_tokenizer_folder.py", "data/test_token_corpus.py"),
    ),
}
"""Files whose tests share what takes seconds to make: one worker runs all of them."""
GROUP_OF = {f"tests/{file}": name for name, files in GROUPS.items() for file in files}


class GroupScheduling(LoadScopeScheduling):
    """Gives each test to any worker, but for the files of a group.

    pytest-xdist 3.8 does not see the mark `xdist_group` under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return GROUP_OF.get(nodeid.partition("::")[0], nodeid)
