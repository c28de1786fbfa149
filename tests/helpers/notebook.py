"""Execute a notebook without Jupyter. `python -m tests.helpers.notebook PATH RUN` saves the outputs in the notebook."""

from __future__ import annotations

import base64
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt


def execute(notebook: dict[str, Any], replaced: tuple[str, str] = ("", "")) -> None:
    """Run the code cells in one namespace, and store what they print and draw as their outputs.

    Args:
        notebook: Content of the .ipynb file, which is changed in place.
        replaced: Text in the code and its replacement.
    """
    names: dict[str, Any] = {}
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(cells, 1):
        code = "".join(cell["source"]).replace(*replaced)
        with redirect_stdout(StringIO()) as printed, redirect_stderr(StringIO()):
            exec(compile(code, f"cell {number}", "exec"), names)
        text = printed.getvalue().splitlines(keepends=True)
        outputs = [{"output_type": "stream", "name": "stdout", "text": text}] if text else []
        cell.update(execution_count=number, outputs=outputs + [_picture(i) for i in plt.get_fignums()])
        plt.close("all")


def _picture(number: int) -> dict[str, Any]:
    buffer = BytesIO()
    plt.figure(number).savefig(buffer, format="png", dpi=80, metadata={"Software": None})
    data = {"image/png": base64.b64encode(buffer.getvalue()).decode(), "text/plain": ["<Figure>"]}
    return {"output_type": "display_data", "data": data, "metadata": {}}


if __name__ == "__main__":
    path, run = Path(sys.argv[1]), sys.argv[2]
    plt.switch_backend("agg")
    content = json.loads(path.read_text(encoding="utf-8"))
    execute(content, ("runs/NAME", run))
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
