"""docs/cases.md lists exactly the reports that tests stand for, with these tests."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

FOLDER = Path(__file__).parent
TABLE = FOLDER.parents[1] / "docs" / "cases.md"


def marked_tests() -> dict[str, set[str]]:
    """The tests that carry the mark of each case."""
    tests: defaultdict[str, set[str]] = defaultdict(set)
    for path in FOLDER.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                for case in (case for mark in node.decorator_list for case in cases_of(mark)):
                    tests[case].add(node.name)
    return tests


def cases_of(mark: ast.expr) -> list[str]:
    is_case = isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.case"
    return [ast.literal_eval(argument) for argument in mark.args] if is_case and isinstance(mark, ast.Call) else []


def test_the_table_and_the_tests_agree() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in TABLE.read_text().splitlines()]
    rows = [row for row in rows if re.fullmatch(r"[A-Z]{3}-\d{2}", row[0])]
    listed = {row[0]: set(re.findall(r"`(test_\w+)`", row[4])) for row in rows}
    assert len(listed) == len(rows), "each case has one row"
    for case, _, _, verdict, _ in rows:
        assert re.match(r"tested|fixed: |does not apply: ", verdict), case
        assert verdict.startswith("does not apply") != bool(listed[case]), case
    assert {case: tests for case, tests in listed.items() if tests} == marked_tests()
