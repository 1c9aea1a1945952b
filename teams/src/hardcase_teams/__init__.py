"""hardcase inside the programs that a team already uses: MLflow, Lightning, transformers, MAITE."""
