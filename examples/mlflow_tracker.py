"""A tracker of MLflow: paceline train --track mlflow_tracker.py:MLflow, beside this file.

MLflow reads its own variables: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME, MLFLOW_TRACKING_TOKEN, …
"""

import mlflow

import paceline


class MLflow:
    """One MLflow run per run folder; a resumed run continues it."""

    name = "mlflow"

    def open(self, run):
        """Start the run, or continue it under the id that its folder keeps."""
        file = run.folder.path / "mlflow-id.txt"
        known = file.read_text().strip() if file.exists() else None
        active = mlflow.start_run(run_id=known, run_name=run.folder.name)
        file.write_text(active.info.run_id)
        if known is None:
            mlflow.log_params(run.config.as_dict())

    def record(self, entry):
        """Log the scalars of a record, such as loss/train; messages have none."""
        values = paceline.scalars(entry)
        if values:
            mlflow.log_metrics(values, step=entry.step)

    def close(self, result):
        """End the run with its state; without a result it has failed."""
        if result is not None and result.test is not None:
            mlflow.log_metrics({f"test/{name}": value for name, value in result.test.as_dict().items()})
        if result is None:
            mlflow.end_run("FAILED")
        else:
            mlflow.end_run("FINISHED" if result.state == "FINISHED" else "KILLED")
