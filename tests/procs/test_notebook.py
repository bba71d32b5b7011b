"""The notebook runs as it stands, in a kernel of its own, whose event loop runs while cells do."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[2] / "examples" / "notebook.ipynb"


@pytest.mark.timeout(300)
def test_notebook_trains(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}

    ran = NotebookClient(notebook, timeout=240, kernel_name="python3", resources=where).execute()

    said = "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in ran.cells
        for output in cell.get("outputs", ())
    )
    assert "training begins" in said
    assert "done after 20 steps: all steps are done" in said
    assert "(80, 80)" in said
    assert (tmp_path / "notebook.safetensors").exists()


def test_notebook_is_kept_without_outputs():
    """They would change with each run, and hold paths of who ran it last."""
    cells = [
        cell for cell in nbformat.read(NOTEBOOK, as_version=4).cells if cell.cell_type == "code"
    ]

    assert cells
    assert [cell.outputs for cell in cells if cell.outputs] == []
    assert {cell.execution_count for cell in cells} == {None}
