"""hardcase and the work of others: models that others have trained or that torch does not run
(hubs, ONNX, TFLite, servers), files of other tools, Ray, cards, and plug-ins of MLflow,
Lightning, transformers, MAITE and pytest. README.md says which file holds what.
"""
