"""The platform's own server of models: Vertex AI's routes over torch, scikit-learn, TensorFlow and XGBoost models.

``python -m trainmaster_serving`` serves the model at ``AIP_STORAGE_URI``; with ``--batch`` it predicts for files.
"""
