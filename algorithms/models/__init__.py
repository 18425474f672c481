"""Networks: from observations to action distributions and values."""
