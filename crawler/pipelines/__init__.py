"""Page pipelines: steps between download and results stream, ordered by PAGE_PIPELINES (agent.page.PagePipeline)."""
