"""`Retrieval`: a head over items whose vectors a model computes, its candidates and its index."""
