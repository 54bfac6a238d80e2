"""Debian's Chromium: where it is, and `python -m tests.browser.chromium`, which installs it where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
VARIABLE = "WORKBENCH_CHROMIUM"
"""An environment variable that names another browser to take."""


def find() -> str | None:
    """The path of a Chromium, or None."""
    named = os.environ.get(VARIABLE)
    return shutil.which(named) if named else next(filter(None, map(shutil.which, NAMES)), None)


def install() -> str | None:
    """None if there is a Chromium now, else why not."""
    if find():
        return None
    if os.environ.get(VARIABLE):
        return f"{VARIABLE} names no program ({os.environ[VARIABLE]!r})"
    if shutil.which("apt-get") is None:
        return "there is no apt-get here"
    root: list[str] = []
    if os.geteuid() != 0:
        if shutil.which("sudo") is None:
            return "this is not root, and there is no sudo"
        root = ["sudo", "-n"]
    print("Installing Debian's chromium for the tests in a browser (under a minute).", flush=True)
    apt = [
        *root,
        "env",
        "DEBIAN_FRONTEND=noninteractive",
        "apt-get",
        "-qq",
        "-o",
        "Dpkg::Use-Pty=0",
    ]
    packages = ["chromium", "fonts-dejavu-core"]
    steps = [
        [*apt, "-o", "Acquire::Retries=3", "update"],
        [*apt, "-o", "Acquire::Retries=3", "install", "-y", "--no-install-recommends", *packages],
    ]
    problem = ""
    for step in steps:
        try:
            done = subprocess.run(
                step,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=600,
            )
        except subprocess.TimeoutExpired:
            return f"`{' '.join(step)}` was not done after 10 minutes"
        if done.returncode != 0:  # a list that could not be refreshed may still hold the package
            problem = f"`{' '.join(step)}` failed:\n" + "\n".join(
                done.stdout.strip().splitlines()[-15:]
            )
    return (
        None if find() else problem or "apt-get said that all went well, but there is no chromium"
    )


if __name__ == "__main__":
    reason = install()
    if reason:
        print(
            f"\nNo Chromium could be installed: {reason}\n"
            "The tests in a browser need one (`sudo apt-get install chromium`, or name one in "
            f"{VARIABLE}).\nWithout it they are skipped; where CI=true they fail.\n",
            file=sys.stderr,
        )
