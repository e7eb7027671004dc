"""The platform's model server: Vertex AI's routes for torch, scikit-learn, TensorFlow and XGBoost models.

``python -m trainmaster_serving`` serves the model at ``AIP_STORAGE_URI``; with ``--batch`` it predicts for files.
"""
