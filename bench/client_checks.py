# SPDX-License-Identifier: Apache-2.0
"""What the checks of clients share: each is run if its package is installed, and counted."""
import importlib.util
import traceback


def run_checks(checks, names, note=lambda: ""):
    """checks: name -> (package, function). All, or those that are named. Exit status 1 when one failed, or none passed."""
    failed = left_out = passed = 0
    for name in names or checks:
        package, check = checks[name]
        if importlib.util.find_spec(package) is None:
            left_out += 1
            print(f"{name}: left out: {package} is not installed")
            continue
        try:
            check()
            passed += 1
            print(f"{name}: passed", flush=True)
        except Exception:
            failed += 1
            traceback.print_exc()
            print(f"{name}: failed", flush=True)
    print(f"{passed} passed, {failed} failed, {left_out} left out{note()}")
    return 1 if failed or not passed else 0
