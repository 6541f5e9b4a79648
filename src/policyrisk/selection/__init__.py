"""The choice between estimators and between policies: cross-validation and comparison."""
