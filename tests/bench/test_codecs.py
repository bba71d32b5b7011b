"""`bench/codecs.py` writes its file: what it measures takes what the program takes."""

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench" / "codecs.py"


def test_each_codec_has_a_speed_in_the_file(tmp_path):
    told = tmp_path / "codecs.json"
    command = [sys.executable, BENCH, "--mib", "1", "--json", told]

    made = subprocess.run(command, capture_output=True, text=True, check=False)

    assert made.returncode == 0, made.stderr
    assert json.loads(told.read_text())["dither4"]["encode_mb_s"] > 0
    assert "a gradient rounded to a grid and added" in made.stdout
