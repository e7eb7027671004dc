#!/usr/bin/env python3
"""Everything a developer runs, with nothing but Python >= 3.11: ``python3 dev.py VERB``; without a verb it lists them.

The first call makes ``.venv`` in this folder and installs what its verb needs, at the versions and with the digests of
``requirements/*.lock``; later calls only compare digests. The Makefile has the same verbs.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
PACKAGES = ("sdk", "worker_images/runtime", "worker_images/train", "worker_images/serving", ".")
# The examples train with torch; this version is pinned because its CPU build needs no other package.
TORCH = "torch==2.13.0"
LOCKS = ROOT / "requirements"
WHEELS = "trainmaster/wheels"
# The extras of this checkout's own package; each verb installs those that it needs.
EXTRAS = ("train", "test", "lint")
# Name to tag, context and options; in the order in which they stand on each other.
IMAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "runtime": ("trainmaster/runtime", "worker_images", ()),
    "base": ("trainmaster/base", "worker_images", ()),
    "torch": ("trainmaster/torch:cpu", "worker_images", ()),
    "torch-cuda": ("trainmaster/torch:cuda", "worker_images", ("--build-arg", "DEVICE=cuda")),
    "serving": ("trainmaster/serving:cpu", "worker_images", ()),
    "tensorflow": ("trainmaster/tensorflow:cpu", "worker_images", ()),
    "serving-tensorflow": (
        "trainmaster/serving:tensorflow",
        "worker_images",
        (
            *("--build-arg", "BASE=trainmaster/tensorflow:cpu"),
            *("--build-arg", "READS=trainmaster_serving.tensorflow_model"),
        ),
    ),
}
# One environment for each training framework whose scripts the tests run as real jobs: no two of them go into one.
# Each is a list of pip's arguments, in order.
FRAMEWORKS: dict[str, tuple[tuple[str, ...], ...]] = {
    "tf215": (("tensorflow-cpu==2.15.1",),),  # the last one with estimators
    # tf_keras would pull the tensorflow with CUDA beside the CPU's.
    "tf": (("tensorflow-cpu==2.21.0",), ("--no-deps", "tf_keras==2.21.0")),
    "mxnet": (("mxnet==1.9.1", "numpy<1.24"),),  # np.bool went with numpy 1.24
    "xgboost": (("xgboost-cpu==3.2.0",),),
    "jax": (("jax==0.10.2",),),
    "mlflow": (("mlflow==3.17.2", "scikit-learn==1.9.1"),),
    # Clients alone; setuptools, since the SDK packs a user's script with the interpreter that it runs in. hypertune is
    # what its scripts report with (https://pypi.org/project/cloudml-hypertune; the `hypertune` there is another
    # project's). pandas, as its experiments are read back.
    "vertex": (("google-cloud-aiplatform==2.7.0", "setuptools", "cloudml-hypertune", "pandas"),),
    "vertex1": (("google-cloud-aiplatform==1.165.1", "setuptools", "cloudml-hypertune", "pandas"),),
    "tensorboard": (("tensorboard==2.21.0", "setuptools"),),  # with tf what those clients upload event files by
    "vertex-bridge": (("-e", "./sdk[vertex-bridge]"),),  # as who runs the bridge installs it
    "kubeflow": (("kubeflow==0.5.0",),),  # a client alone, with Kubernetes' own
    # Their torch is that of the platform's own environment.
    "launchers": (
        ("huggingface_hub", "safetensors", "fsspec[http]", "lightning-utilities", "psutil", "pyyaml"),
        ("--no-deps", "accelerate==1.15.0", "lightning==2.6.6", "pytorch-lightning==2.6.6", "torchmetrics==1.9.0"),
    ),
    "ray": (("ray[default,train]==2.60.0",),),  # its client needs the one extra, Ray Train the other
}
FRAMEWORKS_FOLDER = ROOT / ".frameworks"
LINTED = (
    "api",
    "core",
    "scheduler",
    "executors",
    "embedded",
    "migrations",
    "sdk",
    "worker_images",
    "benchmarks",
    "deploy",
    "examples",
    "requirements",
    "docs/module_map.py",
    "tests",
    "web/build.py",
    "setup.py",
    "dev.py",
)
TYPED = (
    "api",
    "core",
    "scheduler",
    "executors",
    "embedded",
    "sdk/trainmaster",
    "worker_images/runtime/trainmaster_runtime",
    "worker_images/train/trainmaster_train",
    "worker_images/serving/trainmaster_serving",
    "worker_images/serving/trainmaster_automl",
)


def main(argv: list[str]) -> int:
    verbs = {
        "install": install,
        "demo": demo,
        "test": test,
        "lint": lint,
        "up": up,
        "web": web,
        "bench": bench,
        "openapi": openapi,
        "lock": lock,
        "images": images,
        "frameworks": frameworks,
        "sbom": sbom,
        "bundle": bundle,
    }
    if sys.version_info < (3, 11):  # noqa: UP036 (the sentence is for whoever starts it with an older one)
        return fail(f"Trainmaster needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    if not argv or argv[0] not in verbs:
        return fail(f"usage: python3 dev.py {'|'.join(verbs)} [arguments]")
    if sys.platform != "linux":
        return fail("Trainmaster's platform runs on Linux; the client (sdk/) runs anywhere.")
    try:
        return verbs[argv[0]](argv[1:])
    except KeyboardInterrupt:
        print("\nStopped.", file=sys.stderr)
        return 130


def fail(sentence: str) -> int:
    print(sentence, file=sys.stderr)
    return 2


def install(arguments: list[str]) -> int:
    """Make or refresh ``.venv`` with all that any verb needs."""
    return need(*EXTRAS, force="--force" in arguments) or with_pages()


def need(*extras: str, force: bool = False) -> int:
    """Install the platform and these of ``EXTRAS`` into ``.venv``; nothing to do while the requirements are the
    same.
    """
    stamp = VENV / "installed"
    sources = [*(ROOT / package / "pyproject.toml" for package in PACKAGES), *sorted(LOCKS.glob("*.lock"))]
    wanted = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    # The requirements' digest, and the extras that were installed with them.
    before, *present = stamp.read_text().split() if stamp.exists() else [""]
    if before != wanted:
        present = []
    elif set(extras) <= {*present} and not force:
        return 0
    chosen = [extra for extra in EXTRAS if extra in {*extras, *present}]
    if not PYTHON.exists():
        print("Making .venv …", flush=True)
        made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False)
        if made.returncode != 0:
            shutil.rmtree(VENV, ignore_errors=True)
            return fail(
                "Python's venv module is missing; install it (Debian and Ubuntu: apt-get install python3-venv)."
            )
    pip = [str(PYTHON), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    names = ("platform", "tensorboard", *chosen)
    locks = [argument for name in names for argument in ("-r", str(LOCKS / f"{name}.lock"))]
    own = [argument for package in PACKAGES for argument in ("-e", f"./{package}")]
    more = f" and what is needed to {', '.join(chosen)}" if chosen else ""
    steps = [(f"the platform's requirements{more}", [*pip, "--require-hashes", "--no-deps", *locks])]
    if {"train", "test"} & {*chosen}:
        # By itself and by version alone: the right build depends on the machine, and so do its digests.
        steps.append(("torch", [*pip, TORCH]))
    steps.append(("the platform", [*pip, "--no-deps", "--no-build-isolation", *own]))
    for what, command in steps:
        print(f"Installing {what} into .venv …", end="", flush=True)
        began_s = time.monotonic()
        code = subprocess.run(command, cwd=ROOT, check=False).returncode
        print(f" {time.monotonic() - began_s:.0f} s", flush=True)
        if code != 0:
            return fail("Installing failed; pip's message above says why. Nothing outside .venv was touched.")
    stamp.write_text(" ".join([wanted, *chosen]))
    return 0


def lock(_arguments: list[str]) -> int:
    """Write ``requirements/*.lock`` and those of the images and the web: the newest allowed versions, with digests."""
    return need("lint") or run(PYTHON, "requirements/renew.py") or run(PYTHON, "web/build.py", "lock")


def run(*command: str | Path) -> int:
    """The exit code of ``command``, run in the checkout with the environment's programs first on the path."""
    env = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}
    return subprocess.run([str(part) for part in command], cwd=ROOT, env=env, check=False).returncode


def web(_arguments: list[str]) -> int:
    """Build the web pages into ``web/dist``, unless they are as new as their sources."""
    return need() or run(PYTHON, "web/build.py")


def with_pages() -> int:
    """The same, for whom the pages are a part of what is wanted: the platform runs without them, too."""
    if run(PYTHON, "web/build.py") != 0:
        print("Everything else works without the web pages; `python3 dev.py web` tries again to build them.")
    return 0


def demo(arguments: list[str]) -> int:
    """The main job: a platform on this machine, two real distributed training jobs, watched to their end."""
    return need("train") or with_pages() or run(PYTHON, "examples/demo.py", *arguments)


def test(arguments: list[str]) -> int:
    """The tests, stage by stage; ``--quick``: the first stage alone; ``--all``: the slow ones, too; else pytest's
    options.
    """
    if missing := need("train", "test") or with_pages():
        return missing
    if all(word in {"--quick", "--all"} for word in arguments):
        return run(PYTHON, "tests/stages.py", *arguments)
    return run(PYTHON, "-m", "pytest", *arguments)


def up(arguments: list[str]) -> int:
    return need() or with_pages() or run(VENV / "bin" / "trainmaster", "up", *arguments)


def lint(_arguments: list[str]) -> int:
    """Format, lint, types, walls, the committed OpenAPI document, and the same for the web pages where Node is."""
    if need(*EXTRAS):  # the types of all that is imported count
        return 1
    checks: tuple[tuple[str | Path, ...], ...] = (
        (PYTHON, "-m", "ruff", "format", "--check", *LINTED),
        (PYTHON, "-m", "ruff", "check", *LINTED),
        (PYTHON, "-m", "mypy", *TYPED),
        (VENV / "bin" / "pyright",),
        (VENV / "bin" / "lint-imports", "--no-cache"),
        (PYTHON, "-m", "api.openapi", "--check"),
        (PYTHON, "docs/module_map.py", "--check"),
    )
    failed = [str(check[-1] if check[0] == PYTHON else check[0]) for check in checks if run(*check) != 0]
    if run(PYTHON, "web/build.py", "check") not in {0, 3}:  # 3: nothing to look with
        failed.append("web")
    return fail(f"Not clean: {', '.join(failed)}") if failed else 0


def openapi(_arguments: list[str]) -> int:
    """Write the committed OpenAPI document anew."""
    return need() or run(PYTHON, "-m", "api.openapi")


def images(arguments: list[str]) -> int:
    """Build worker images: ``images [runtime|base|torch|torch-cuda|serving|tensorflow|serving-tensorflow …] [--wheels
    FOLDER]``; alone: the small and the CPU ones. Wheels in FOLDER are taken before those of an index.
    """
    words = list(arguments)
    wheels = None
    if "--wheels" in words:
        at = words.index("--wheels")
        wheels = words[at + 1] if at + 1 < len(words) else None
        del words[at : at + 2]
        if wheels is None or not Path(wheels).is_dir():
            return fail("--wheels needs a folder with wheels.")
    unknown = [word for word in words if word not in IMAGES]
    if unknown:
        return fail(f"usage: python3 dev.py images [{'|'.join(IMAGES)} …] [--wheels FOLDER]")
    build = ("docker", "build", "--network", "host")
    more: list[str] = []
    if wheels is not None:
        recipe = "FROM scratch\nCOPY *.whl /\n"
        made = subprocess.run([*build, "-q", "-t", WHEELS, "-f", "-", wheels], input=recipe, text=True, check=False)
        if made.returncode != 0:
            return made.returncode
        more = ["--build-arg", f"WHEELS={WHEELS}"]
    code = 0
    for name in [name for name in IMAGES if name in words or (not words and name != "torch-cuda")]:
        tag, context, options = IMAGES[name]
        folder, _, _ = name.partition("-")
        file = ROOT / "worker_images" / folder / "Dockerfile"
        code = code or run(
            *build, *options, *(more if "WHEELS" in file.read_text() else ()), "-t", tag, "-f", file, context
        )
    if wheels is not None:
        subprocess.run(["docker", "rmi", "-f", WHEELS], stdout=subprocess.DEVNULL, check=False)
    return code


def sbom(arguments: list[str]) -> int:
    """Write bills of materials of server, web and the images that are named; fails on a licence that is not allowed."""
    return need() or run(PYTHON, "requirements/sbom.py", *arguments)


def bundle(arguments: list[str]) -> int:
    """Write one archive for installations without network: wheels, images, chart, web pages and an installer."""
    own = [argument for package in PACKAGES for argument in ("--package", package)]
    return need() or with_pages() or run(PYTHON, "requirements/bundle.py", *own, *arguments)


def frameworks(arguments: list[str]) -> int:
    """Make the environments in which ``tests/frameworks`` run TensorFlow, MXNet, XGBoost, JAX, MLflow, Vertex AI's SDK,
    Kubeflow's, Ray's and launchers: ``frameworks
    [tf215|tf|mxnet|xgboost|jax|mlflow|vertex|vertex1|tensorboard|vertex-bridge|kubeflow|launchers|ray …]``; alone: all
    of them, 6.1 GB. What is there already is left as it is.
    """
    if unknown := [word for word in arguments if word not in FRAMEWORKS]:
        return fail(f"{unknown[0]}: unknown. usage: python3 dev.py frameworks [{'|'.join(FRAMEWORKS)} …]")
    for name in arguments or FRAMEWORKS:
        folder = FRAMEWORKS_FOLDER / name
        stamp = folder / "installed"
        wanted = repr(FRAMEWORKS[name])
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        print(f"Installing {name} into {folder.relative_to(ROOT)} …", end="", flush=True)
        began_s = time.monotonic()
        shutil.rmtree(folder, ignore_errors=True)
        # Nothing is compiled: a test imports a small part of it, and compiling all takes longer than installing.
        pip = (folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-compile")
        steps = ((sys.executable, "-m", "venv", folder), *((*pip, *words) for words in FRAMEWORKS[name]))
        for step in steps:
            if subprocess.run([str(word) for word in step], cwd=ROOT, check=False).returncode != 0:
                shutil.rmtree(folder, ignore_errors=True)
                return fail(f"\nInstalling {name} failed; the message above says why.")
        stamp.write_text(wanted)
        print(f" {time.monotonic() - began_s:.0f} s", flush=True)
    return 0


def bench(arguments: list[str]) -> int:
    """One benchmark by name; ``--smoke``: each headline figure in small; without a name their list."""
    folder = ROOT / "benchmarks"
    modules = {
        path.stem: path for path in folder.glob("*/*.py") if path.stem != "__init__" and path.parent.name != "support"
    }
    modules["--smoke"] = folder / "smoke.py"
    if not arguments or arguments[0] not in modules:
        return fail(f"usage: python3 dev.py bench {'|'.join(sorted(modules))} [arguments]")
    module = ".".join(modules[arguments[0]].relative_to(ROOT).with_suffix("").parts)
    return need("train", "test") or run(PYTHON, "-m", module, *arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
