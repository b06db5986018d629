"""The backend of Keras, before any test module imports a framework that imports Keras, too."""

import os

os.environ.setdefault("KERAS_BACKEND", "jax")
