"""Other libraries' posteriors and formats: sbi (`sbi`) and ArviZ (`arviz`). Each needs the extra of its name."""
