"""torch: TorchScript, which contains its module; programs of ``torch.export`` and state dicts only with trust_code."""

from __future__ import annotations

import importlib.util
import os
import warnings
import zipfile
from typing import Any, Dict, List, Sequence, Union

import torch

from trainmaster_serving.errors import BadInstances, ModelProblem
from trainmaster_serving.image_model import IMAGES_FILE, ImageModel
from trainmaster_serving.values import array, by_instance, columns

# The module of a state dict: its `make_model()` returns the module without weights.
_FACTORY = "model.py"


class TorchModel:
    """A module that maps a batch to a batch."""

    def __init__(self, module: Any) -> None:
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._module = module.to(self._device)

    def predict(self, instances: Sequence[Any], parameters: Dict[str, Any]) -> List[Any]:
        """Objects become keyword arguments, other instances the only argument; ``parameters`` are further keyword
        arguments.
        """
        if isinstance(instances[0], dict):
            named = {name: self._tensor(rows, name) for name, rows in columns(instances).items()}
            outputs = self._call([], {**named, **parameters})
        else:
            outputs = self._call([self._tensor(instances, "instances")], parameters)
        return by_instance(_on_cpu(outputs), len(instances))

    def _tensor(self, rows: Sequence[Any], label: str) -> Any:
        made = array(rows, label)
        if made.dtype.kind not in "biuf":
            raise BadInstances("%s: this model takes numbers, not text" % label)
        tensor = torch.as_tensor(made, device=self._device)
        return tensor.float() if made.dtype.kind == "f" else tensor

    def _call(self, tensors: List[Any], named: Dict[str, Any]) -> Any:
        try:
            with torch.inference_mode():
                return self._module(*tensors, **named)
        except (RuntimeError, TypeError, ValueError, AssertionError) as error:
            integers = [
                item
                for item in (*tensors, *named.values())
                if isinstance(item, torch.Tensor) and not item.is_floating_point()
            ]
            if not integers:
                raise BadInstances("the model rejects them: %s" % _first_line(error)) from error
            # JSON does not distinguish 1 from 1.0: integers may be meant as floats.
            floating = {name: _floating(item) for name, item in named.items()}
            try:
                with torch.inference_mode():
                    return self._module(*[_floating(item) for item in tensors], **floating)
            except (RuntimeError, TypeError, ValueError, AssertionError):
                raise BadInstances("the model rejects them: %s" % _first_line(error)) from error


def load(path: str, trust_code: bool) -> Union[TorchModel, ImageModel]:
    """Raises ``ModelProblem``."""
    if path.endswith(".pt2"):
        return TorchModel(_exported(path, trust_code))
    if _is_torchscript(path):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the deprecation of TorchScript: the file is TorchScript
                module = torch.jit.load(path, map_location="cpu")  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise ModelProblem("%s is not a readable TorchScript file: %s" % (path, _first_line(error))) from error
        about = os.path.join(os.path.dirname(path), IMAGES_FILE)
        if os.path.isfile(about):
            return ImageModel(TorchModel(module.eval()), about)
        return TorchModel(module.eval())
    return TorchModel(_with_weights(path, trust_code))


def _exported(path: str, trust_code: bool) -> Any:
    # torch's own loader unpickles parts of the archive, evaluates sizes and guards as Python, and loads compiled
    # libraries; no check of the archive beforehand can prove that this is harmless.
    if not trust_code:
        raise ModelProblem(
            "%s is a program of torch.export, which may run code of its author when it is read; deploy with trust_code "
            "(`--trust-code`) if you trust its author, or save the model with torch.jit.save." % path
        )
    try:
        return torch.export.load(path).module()
    except Exception as error:  # the archive may hold anything
        raise ModelProblem("%s is not a readable program of torch.export: %s" % (path, _first_line(error))) from error


def _is_torchscript(path: str) -> bool:
    """Whether it is a zip archive with code; that of a state dict has none."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any("/code/" in name for name in archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def _with_weights(path: str, trust_code: bool) -> Any:
    factory = os.path.join(os.path.dirname(path), _FACTORY)
    if not os.path.isfile(factory):
        raise ModelProblem(
            "%s has only weights, without the module: save the model with torch.jit.save or torch.export.save, or "
            "put a %s with make_model() next to it." % (path, _FACTORY)
        )
    if not trust_code:
        raise ModelProblem(
            "%s has only weights, so %s next to it would have to be run; deploy with trust_code (`--trust-code`) "
            "if you trust its author." % (path, _FACTORY)
        )
    spec = importlib.util.spec_from_file_location("served_model", factory)
    if spec is None or spec.loader is None:
        raise ModelProblem("%s cannot be read as Python." % factory)
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    module = code.make_model()
    try:
        # Only weights are read: no code of this file is run.
        state = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state.get("model", state) if isinstance(state, dict) else state)
    except Exception as error:  # torch raises many types
        raise ModelProblem("%s are not the weights of %s: %s" % (path, _FACTORY, _first_line(error))) from error
    return module.eval()


def _floating(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) else value


def _on_cpu(outputs: Any) -> Any:
    if isinstance(outputs, torch.Tensor):
        return outputs.detach().float().cpu() if outputs.dtype == torch.bfloat16 else outputs.detach().cpu()
    if isinstance(outputs, dict):
        return {name: _on_cpu(item) for name, item in outputs.items()}
    if isinstance(outputs, (list, tuple)):
        return tuple(_on_cpu(item) for item in outputs)
    return outputs


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # TorchScript's messages begin with a stack.
    sentence = next(
        (line for line in lines if line.startswith("RuntimeError:")), lines[0] if lines else type(error).__name__
    )
    return sentence.replace("RuntimeError: ", "")[:500]
