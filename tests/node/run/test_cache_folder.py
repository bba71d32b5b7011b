"""Where a trainer keeps what can be made again."""

from pathlib import Path

from p2pswarm.node.run.cache_folder import default_cache


def test_the_cache_is_where_the_user_keeps_caches(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "p2pswarm"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path.home() / ".cache" / "p2pswarm"
