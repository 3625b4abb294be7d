"""What a machine can check of the style guide: sizes, documentation, nothing left over."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from api.errors import STATUS
from api.settings import Settings
from engine.errors import BottomlessError

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("engine", "api", "jobs", "bottomless")
MODULE_LINES_MAX = 500
FUNCTION_LINES_MAX = 70
SOURCES = sorted(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))
TESTS = [path for path in TESTS if "node_modules" not in path.parts]
# Modules that are started, not imported.
ENTRY_POINTS = {"bottomless.cli"} | {
    f"jobs.{path.stem}" for path in (ROOT / "jobs").glob("*.py") if path.stem != "__init__"
}


def name_of(path: Path) -> str:
    """The path below the root, for messages and ids."""
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES + TESTS, ids=name_of)
def test_tidy_modules_and_functions_are_small(path: Path) -> None:
    source = path.read_text()
    assert len(source.splitlines()) <= MODULE_LINES_MAX
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, node.name


def test_tidy_every_module_is_used() -> None:
    text = "\n".join(path.read_text() for path in SOURCES)
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in SOURCES
        if path.name != "__init__.py"
    }
    unused = {
        module
        for module in modules - ENTRY_POINTS
        if module not in text
        and f"from {module.rpartition('.')[0]} import {module.rpartition('.')[2]}" not in text
    }
    assert unused == set()


def test_tidy_no_vague_module_names() -> None:
    vague = {"utils", "helpers", "common", "manager"}
    names = {path.stem for path in SOURCES if path.parts[len(ROOT.parts)] != "jobs"}
    assert not names & vague


def all_errors(root: type[BottomlessError] = BottomlessError) -> list[type[BottomlessError]]:
    """The whole tree of error classes."""
    found = [root]
    for child in root.__subclasses__():
        # Errors of the jobs never reach the wire; other tests may have imported them.
        if not child.__module__.startswith("jobs."):
            found += all_errors(child)
    return found


def test_tidy_every_error_has_a_status_and_is_documented() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text()
    for error in all_errors():
        assert error.code in STATUS, error
        assert f"`{error.code}`" in page, error
    assert {error.code for error in all_errors()} | {"method_not_allowed"} == set(STATUS)


def test_tidy_error_tree_in_the_docstring_is_complete() -> None:
    tree = (ROOT / "engine" / "errors.py").read_text().split('"""')[1]
    for error in all_errors():
        if error.__module__ == "engine.errors":
            assert re.search(rf"\b{error.__name__}\b", tree), error


def test_tidy_generated_pages_are_current() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "write_reference.py", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_tidy_every_setting_says_what_it_does() -> None:
    for name, field in Settings.model_fields.items():
        section = type(field.default)
        for key, setting in getattr(section, "model_fields", {}).items():
            assert setting.description, f"{name}.{key}"


def test_tidy_links_between_pages_work() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{name_of(page)} -> {target}"


def test_tidy_every_make_target_is_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = " ".join(re.findall(r"^\.PHONY: (.+)$", text, re.MULTILINE)).split()
    for target in phony:
        assert re.search(rf"^{target}:.*## ", text, re.MULTILINE), target


def test_tidy_lock_files_name_no_address() -> None:
    locks = [*(ROOT / "requirements").glob("*.txt"), ROOT / "tests/conformance/package-lock.json"]
    for lock in locks:
        assert '"resolved"' not in lock.read_text(), lock
        if lock.suffix == ".txt":
            assert "://" not in lock.read_text(), lock
