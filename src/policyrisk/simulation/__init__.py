"""Running a policy: compiled domains, Gymnasium environments, policies."""
