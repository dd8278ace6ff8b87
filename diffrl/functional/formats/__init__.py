"""Number formats of low precision: how a tensor is quantised and what its codes stand for; torch only."""
