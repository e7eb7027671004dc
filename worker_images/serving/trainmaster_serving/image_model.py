"""AutoML's image models: image files in, a class and the probability of each class out."""

from __future__ import annotations

import base64
import binascii
import io
import json
from typing import Any, Dict, List, Sequence

from trainmaster_serving.errors import BadInstances, ModelProblem

# Next to the model: {"classes": […], "size": pixels of a side}.
IMAGES_FILE = "images.json"
# White at the bit depths of cameras and scanners: files of 16 and 32 bits mostly use fewer bits without saying so.
_WHITES = (255, 4095, 65535)
_MOST_PIXELS = 50_000_000  # of one image before scaling: a limit against decompression bombs


class ImageModel:
    """``module``: maps (images, side, side, 3) of 0 to 255 to (images, classes) of probabilities."""

    def __init__(self, module: Any, about: str) -> None:
        self._module = module
        try:
            with open(about, encoding="utf-8") as stream:
                description = json.load(stream)
            self._classes = [str(name) for name in description["classes"]]
            self._size = int(description["size"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ModelProblem(
                "%s does not have the classes and the size of the images: %s" % (about, error)
            ) from error

    def predict(self, instances: Sequence[Any], parameters: Dict[str, Any]) -> List[Any]:
        """``{"b64": …}``: a PNG, JPEG, … file in base64, as in Vertex AI; or rows of pixels, gray or ``[r, g, b]``."""
        images = [pixels_of(instance, self._size, index) for index, instance in enumerate(instances)]
        predictions = []
        for chances in self._module.predict(images, parameters):
            best = max(range(len(chances)), key=chances.__getitem__)
            predictions.append({"label": self._classes[best], "scores": dict(zip(self._classes, chances))})
        return predictions


def pixels_of(instance: Any, size: int, index: int) -> Any:
    """Pixels (size, size, 3) of one instance. Raises ``BadInstances``."""
    from PIL import Image

    place = "instances[%d]" % index
    if isinstance(instance, dict):
        text = instance.get("b64") or instance.get("image_bytes")
        text = text.get("b64") if isinstance(text, dict) else text
        if not isinstance(text, str):
            raise BadInstances('%s: must be {"b64": "…"}, the file of an image in base64, or rows of pixels' % place)
        try:
            opened = Image.open(io.BytesIO(base64.b64decode(text, validate=True)))
            if opened.width * opened.height > _MOST_PIXELS:
                raise BadInstances("%s: an image of more than %d pixels" % (place, _MOST_PIXELS))
            return as_pixels(opened, size)
        except (OSError, ValueError, binascii.Error, SyntaxError, Image.DecompressionBombError) as error:
            raise BadInstances("%s: not a readable image: %s" % (place, str(error)[:200])) from error
    import numpy as np

    try:
        rows = np.asarray(instance, dtype=np.float64)
    except (ValueError, TypeError) as error:
        raise BadInstances(
            "%s: must be rows of pixels from 0 to 255, gray or [r, g, b], or an image in base64: %s" % (place, error)
        ) from error
    fits = rows.ndim == 2 or (rows.ndim == 3 and rows.shape[2] == 3)
    if not fits or rows.size == 0 or not np.isfinite(rows).all():
        raise BadInstances(
            "%s: its shape is %s; rows of finite pixels, gray or [r, g, b], are taken" % (place, rows.shape)
        )
    return as_pixels(Image.fromarray(np.clip(rows, 0, 255).astype(np.uint8)), size)


def as_pixels(image: Any, size: int) -> Any:
    """Pixels (size, size, 3) of uint8, the same in training and serving. Raises ``OSError``: the file is truncated."""
    import numpy as np
    from PIL import Image

    return np.asarray(_as_rgb(image).resize((size, size), Image.Resampling.BILINEAR), dtype=np.uint8)


def _as_rgb(image: Any) -> Any:
    """Convert to RGB. Pillow's own ``convert("RGB")`` clips deep pixels at 255, so that all become white, and shows
    transparent pixels in their hidden color, mostly black.
    """
    import numpy as np
    from PIL import Image

    if image.mode.startswith("I") or image.mode == "F":
        values = np.asarray(image, dtype=np.float64)
        if image.mode != "F":
            most = values.max(initial=0)
            values = values * 255.0 / next((white for white in _WHITES if most <= white), _WHITES[-1])
        elif np.nanmax(values, initial=0.0) <= 1.0:
            values = values * 255.0
        return Image.fromarray(np.nan_to_num(np.clip(values, 0, 255)).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear).convert("RGB")
    return image.convert("RGB")
