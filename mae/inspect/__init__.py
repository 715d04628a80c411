"""Looking into a model: numbers first, pictures second."""
