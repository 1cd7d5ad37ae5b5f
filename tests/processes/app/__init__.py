"""An app whose handlers write down every run, for the workers that the tests start as processes."""
