"""What only a GPU can show: ``pytest tests/gpu --gpu-report`` writes ``tests/gpu_report.json`` if all of it passes."""
