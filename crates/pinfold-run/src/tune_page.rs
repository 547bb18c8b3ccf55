//! Converts the report of a tuning run to the report page.
//!
//! Nothing is computed here; numbers are copied and formatted.

use pinfold_host::files;
use pinfold_model::text::{count_noun, select_verb};
use pinfold_model::{Finding, IsolationScope, LoadState, Metric, Plan, Topology};
use pinfold_report::{
    BlockRow, BlockValues, Candidate, CandidateId, CandidateKind, Comparison, Conclusion, Curve,
    Distribution, ExportedPlan, FailedStart, Page, PinsAlone, Provenance, Ranking, RankingRow,
    ReachedStage, RequestSummary, RoleRow, RoleTable, Verdict,
};
use pinfold_stats as stats;
use pinfold_study::store::{CandidateRecord, CandidateRole, RunId, Store};
use pinfold_study::tune::{self, Contrast, TuneReport};

use crate::guest::Scratch;
use crate::tune::PageData;
use crate::{Exit, Failure, time};

/// The page of a stored run.
///
/// # Errors
/// If the store cannot be read or has a plan that cannot be parsed.
pub fn from_store(store: &Store, run: RunId, topology: &Topology) -> Result<Page, Failure> {
    let (report, record) = (tune::analyse(store, run)?, store.run(run)?);
    let records = store.candidates(run)?;
    let build = Build {
        store,
        context: PageData::read(&report.config.context)?,
        report,
        topology,
        ended_unix_s: record.finished_unix_s.unwrap_or(record.created_unix_s),
        tried: parse_plans(&records)?,
        records,
    };
    build.page()
}

/// Writes the page.
///
/// # Errors
/// If it cannot be written.
pub fn write(page: &Page, path: &str) -> Result<(), Failure> {
    let html =
        pinfold_report::render(page).map_err(|e| Failure::from_error(Exit::Host, &e, None))?;
    files::write_atomic(path, html.as_bytes()).map_err(Failure::from)
}

/// Indexes (in the run) and plans of the candidates that were started, including the twin.
fn parse_plans(records: &[CandidateRecord]) -> Result<Vec<(usize, Plan)>, Failure> {
    records
        .iter()
        .enumerate()
        .filter(|(_, record)| record.role == CandidateRole::Twin || record.same_as.is_none())
        .map(|(index, record)| {
            let plan = pinfold_plan::schema::from_json(&record.plan_json)
                .map_err(|e| Failure::from_error(Exit::Input, &e, None))?;
            Ok((index, plan))
        })
        .collect()
}

struct Build<'a> {
    store: &'a Store,
    report: TuneReport,
    /// What the run kept for its page.
    context: PageData,
    topology: &'a Topology,
    ended_unix_s: u64,
    records: Vec<CandidateRecord>,
    tried: Vec<(usize, Plan)>,
}

impl Build<'_> {
    fn page(&self) -> Result<Page, Failure> {
        let mut page = Page {
            vm: self.tried[0].1.vnodes.first().map_or_else(String::new, |vnode| vnode.name.clone()),
            banner: None,
            answer: self.answer(),
            asked: self.request(),
            topology: self.topology.clone(),
            candidates: self.candidates(),
            distributions: self.distributions()?,
            blocks: self.blocks(),
            rankings: self.rankings(),
            roles: self.roles()?,
            emitted: self.emit_formats(),
            failed_starts: self.failed_starts(),
            findings: self.findings(),
            provenance: self.provenance(),
        };
        let wrong = pinfold_report::contradictions(&page);
        page.findings.extend(wrong.into_iter().map(|text| {
            Finding::problem("numbers of this page", text).with_hint(
                "do not rely on them, and report this as a bug of Pinfold, with the store",
            )
        }));
        Ok(page)
    }

    /// The page's id of a candidate of the run.
    fn id(&self, index: usize) -> Option<CandidateId> {
        self.tried.iter().position(|(tried, _)| *tried == index).map(CandidateId)
    }

    fn id_of_name(&self, name: &str) -> Option<CandidateId> {
        self.id(self.records.iter().position(|record| record.name == name)?)
    }

    /// Candidates with samples of the confirmation: those ranked, and the twin.
    fn confirmed_candidates(&self) -> Vec<usize> {
        let ranked = |index: usize| self.report.ranking.iter().any(|row| row.candidate == index);
        let twin = |index: usize| self.records[index].role == CandidateRole::Twin;
        self.tried
            .iter()
            .map(|(index, _)| *index)
            .filter(|index| ranked(*index) || (twin(*index) && !self.report.aa.is_empty()))
            .collect()
    }

    fn candidates(&self) -> Vec<Candidate> {
        let confirmed = self.confirmed_candidates();
        let was_dropped = |name: &str| self.report.dropped.iter().any(|one| one.name == name);
        self.tried
            .iter()
            .map(|(index, plan)| {
                let record = &self.records[*index];
                let ranked = self.report.ranking.iter().find(|row| row.candidate == *index);
                let asked = self.report.config.max_gap_ns.is_some();
                Candidate {
                    name: record.name.clone(),
                    alike: self.same_placements(*index),
                    kind: match record.role {
                        CandidateRole::Baseline => CandidateKind::Baseline,
                        CandidateRole::Twin => CandidateKind::Repeat,
                        CandidateRole::Candidate => CandidateKind::Layout,
                    },
                    stage: match (confirmed.contains(index), ranked) {
                        (_, Some(row)) if row.blocks == 0 => ReachedStage::Failed,
                        (true, _) => ReachedStage::Confirmed,
                        (false, _) if was_dropped(&record.name) => ReachedStage::Dropped,
                        (false, _) => ReachedStage::Screened,
                    },
                    plan: plan.clone(),
                    keeps_limit: ranked.filter(|_| asked).map(|row| !row.standing.violates),
                }
            })
            .collect()
    }

    /// Names of the candidates with the same placement.
    fn same_placements(&self, index: usize) -> Vec<String> {
        let name = &self.records[index].name;
        let alike = self.report.same_as.iter().filter(|(_, other)| other == name);
        alike.map(|(alias, _)| alias.clone()).collect()
    }

    fn answer(&self) -> Conclusion {
        let winner = self.report.winner.as_ref();
        let baseline = self.records.iter().position(|r| r.role == CandidateRole::Baseline);
        Conclusion {
            winner: winner
                .filter(|winner| Some(winner.candidate) != baseline)
                .and_then(|winner| self.id(winner.candidate)),
            metric: self.report.config.metric(),
            load: self.report.goal_load,
            pins_alone: self.pinning_gain(),
        }
    }

    /// The placement with the largest gain among those that pin and exclude no task: of the
    /// ranking, else of the screening.
    fn pinning_gain(&self) -> Option<PinsAlone> {
        let metric = self.report.config.metric();
        let load = self.report.goal_load;
        let ranked = self.report.ranking.iter().filter_map(|row| {
            let contrast = row.cell(metric, load)?.against_baseline.as_ref()?;
            let interval = contrast.interval.as_ref()?;
            Some(PinsAlone {
                candidate: self.pinned_id(row.candidate)?,
                ratio: interval.ratio,
                interval: Some((interval.low, interval.high)),
                blocks: contrast.pairs,
            })
        });
        let screened = self.report.screening.iter().filter_map(|row| {
            let (candidate, ratio) = (self.pinned_id(row.standing.candidate)?, row.ratio?);
            Some(PinsAlone { candidate, ratio, interval: None, blocks: row.blocks })
        });
        let gain = |one: &PinsAlone| {
            if metric.higher_is_better() { one.ratio } else { 1.0 / one.ratio }
        };
        let best = |all: Vec<PinsAlone>| all.into_iter().max_by(|a, b| gain(a).total_cmp(&gain(b)));
        best(ranked.collect()).or_else(|| best(screened.collect()))
    }

    fn pinned_id(&self, index: usize) -> Option<CandidateId> {
        let is_pinned = self.records[index].role == CandidateRole::Candidate;
        let (_, plan) = self.tried.iter().find(|(tried, _)| *tried == index)?;
        (is_pinned && plan.exclusive.is_empty()).then(|| self.id(index))?
    }

    fn request(&self) -> RequestSummary {
        let (config, design) = (&self.report.config, &self.report.design);
        let observed = design
            .confirm
            .as_ref()
            .map_or(design.screening_observation_s, |confirm| confirm.observation_s);
        RequestSummary {
            command: self.context.command.clone(),
            goal: config.goal.name().to_owned(),
            max_gap_ns: config.max_gap_ns.map(|ns| ns as f64),
            budget: Some(seconds(config.budget_s)),
            took: Some(seconds(design.spent_s)),
            guest: self.context.guest.clone(),
            loads: config.load_states.clone(),
            screening_blocks: u32::try_from(design.screening.len()).unwrap_or(u32::MAX),
            confirmation_blocks: design.confirm.as_ref().map_or(0, |confirm| confirm.blocks),
            more: vec![(
                "Observation".to_owned(),
                format!("{observed:.2} s of spin-gap in each start and load state"),
            )],
        }
    }

    /// Metrics and load states that were confirmed, in the order of tables.
    fn cells(&self) -> Vec<(LoadState, Metric)> {
        Metric::ALL
            .into_iter()
            .flat_map(|metric| LoadState::ALL.into_iter().map(move |load| (load, metric)))
            .filter(|(load, metric)| {
                self.report.ranking.iter().any(|row| row.cell(*metric, *load).is_some())
            })
            .collect()
    }

    fn distributions(&self) -> Result<Vec<Distribution>, Failure> {
        let mut distributions = Vec::new();
        for (load, metric) in self.cells() {
            if metric.higher_is_better() {
                continue; // rates have no tail
            }
            let mut curves = Vec::new();
            for index in self.confirmed_candidates() {
                let Some(id) = self.id(index) else { continue };
                let pooled = tune::pool_samples(self.store, self.report.run, index, load, metric)?;
                curves.push(curve(id, &pooled));
            }
            distributions.push(Distribution { metric, load, curves });
        }
        Ok(distributions)
    }

    fn blocks(&self) -> Vec<BlockValues> {
        self.cells()
            .into_iter()
            .map(|(load, metric)| BlockValues {
                metric,
                load,
                statistic: statistic(metric).to_owned(),
                rows: self
                    .report
                    .ranking
                    .iter()
                    .filter_map(|row| {
                        let values = row.cell(metric, load)?.blocks.clone();
                        Some(BlockRow { candidate: self.id(row.candidate)?, values })
                    })
                    .collect(),
            })
            .collect()
    }

    fn rankings(&self) -> Vec<Ranking> {
        self.cells()
            .into_iter()
            .map(|(load, metric)| {
                let mut rows = self.ranked_rows(load, metric);
                rows.extend(self.twin_row(load, metric));
                Ranking { metric, load, statistic: statistic(metric).to_owned(), rows }
            })
            .collect()
    }

    fn ranked_rows(&self, load: LoadState, metric: Metric) -> Vec<RankingRow> {
        let mut rows: Vec<(bool, RankingRow)> = self
            .report
            .ranking
            .iter()
            .filter_map(|row| {
                let cell = row.cell(metric, load)?;
                let shown = RankingRow {
                    candidate: self.id(row.candidate)?,
                    blocks: u32::try_from(cell.blocks.len()).unwrap_or(u32::MAX),
                    median: Some(cell.median),
                    worst: Some(cell.worst),
                    comparison: cell.against_baseline.as_ref().and_then(comparison),
                };
                Some((row.dropped, shown))
            })
            .collect();
        // The goal's own table keeps the ranking's order; the others are sorted by their ratio to
        // the baseline, since medians over different blocks cannot be compared, dropped ones last.
        if (load, metric) != (self.report.goal_load, self.report.config.metric()) {
            rows.sort_by(|(a_dropped, a), (b_dropped, b)| {
                a_dropped.cmp(b_dropped).then_with(|| loss(a, metric).total_cmp(&loss(b, metric)))
            });
        }
        rows.into_iter().map(|(_, row)| row).collect()
    }

    fn twin_row(&self, load: LoadState, metric: Metric) -> Option<RankingRow> {
        let row = self.report.aa.iter().find(|row| row.load == load && row.metric == metric)?;
        let twin = self.records.iter().position(|record| record.role == CandidateRole::Twin)?;
        Some(RankingRow {
            candidate: self.id(twin)?,
            blocks: row.contrast.pairs,
            median: None,
            worst: None,
            comparison: comparison(&row.contrast),
        })
    }

    fn roles(&self) -> Result<Vec<RoleTable>, Failure> {
        let loads = self.report.config.load_states.clone();
        let mut tables = Vec::new();
        for load in LoadState::ALL.into_iter().filter(|load| loads.contains(load)) {
            let mut rows = Vec::new();
            for index in self.confirmed_candidates() {
                let Some(candidate) = self.id(index) else { continue };
                let run = self.report.run;
                let totals = tune::role_totals(self.store, run, index, load)?;
                let observed_ns = totals.time_ns.filter(|time| *time > 0);
                rows.extend(totals.roles.into_iter().map(|stats| RoleRow {
                    candidate,
                    observed_ns,
                    stats,
                }));
            }
            tables.push(RoleTable { load, rows });
        }
        Ok(tables)
    }

    fn emit_formats(&self) -> Vec<ExportedPlan> {
        let winner = self.answer().winner;
        let Some((_, plan)) = winner.and_then(|id| self.tried.get(id.0)) else {
            return Vec::new(); // the baseline is the best: there is nothing to set up
        };
        // Stores of older versions have commands with temporary files of the run, which are gone.
        let scratch = Scratch::prefix();
        let words = if self.context.argv.iter().all(|word: &String| !word.contains(&scratch)) {
            self.context.argv.as_slice()
        } else {
            &[]
        };
        let command = pinfold_vm::qemu::command_of(&*pinfold_vm::hypervisors::parse(words));
        // The loads of the run were Pinfold's own. On the user's host they are the host's tasks.
        let plan = Plan {
            isolation: match plan.isolation {
                IsolationScope::None => IsolationScope::None,
                IsolationScope::Own | IsolationScope::Host => IsolationScope::Host,
            },
            ..plan.clone()
        };
        let qemu = pinfold_emit::qemu(&plan, self.topology, &command);
        let (Ok(libvirt), Ok(qemu)) = (pinfold_emit::libvirt(&plan, self.topology), qemu) else {
            // A tuned plan places one machine; a plan with another number has no output formats.
            return Vec::new();
        };
        vec![
            ExportedPlan {
                title: "libvirt XML".to_owned(),
                usage: "Put these elements into the domain (virsh edit), replacing those of the \
                        same name."
                    .to_owned(),
                text: libvirt,
            },
            ExportedPlan {
                title: "QEMU start script".to_owned(),
                usage: if words.is_empty() {
                    "Save it, review it, run it with sh, and give your QEMU command as its \
                         arguments: sh FILE qemu-system-x86_64 …."
                } else {
                    "Save it, review it, run it with sh."
                }
                .to_owned(),
                text: qemu,
            },
        ]
    }

    fn failed_starts(&self) -> Vec<FailedStart> {
        self.report
            .failures
            .iter()
            .filter_map(|failure| {
                Some(FailedStart {
                    candidate: self.id_of_name(&failure.name)?,
                    block: failure.block + 1,
                    why: failure.message.clone(),
                    recovered: failure.recovered,
                })
            })
            .collect()
    }

    /// Findings of the host, of the run, and of the winner's plan.
    fn findings(&self) -> Vec<Finding> {
        let mut findings = self.report.findings.clone();
        findings.extend(self.context.findings.clone());
        findings.extend(self.topology.findings.clone());
        let winner = self.report.winner.as_ref().map(|winner| winner.candidate);
        for (index, plan) in &self.tried {
            if Some(*index) == winner {
                findings.extend(plan.findings.clone());
            }
        }
        findings
    }

    fn provenance(&self) -> Provenance {
        Provenance {
            origin: self.report.origin.clone(),
            store: self.store.path().to_owned(),
            run: self.report.run.to_string(),
            repeat: self.context.command.clone(),
            date: time::date(self.ended_unix_s),
        }
    }
}

fn loss(row: &RankingRow, metric: Metric) -> f64 {
    let ratio = row.comparison.as_ref().map_or(1.0, |comparison| comparison.ratio);
    if metric.higher_is_better() { 1.0 / ratio } else { ratio }
}

/// Shortest stall that counts (ns).
const SHORTEST_GAP_NS: u64 = 1_000;
/// Number of points of a curve of arrivals.
const ARRIVAL_POINTS: usize = 90;

/// Stalls as arrivals see them, other metrics by their samples.
fn curve(id: CandidateId, pooled: &tune::Pooled) -> Curve {
    if pooled.metric != Metric::SpinGap {
        return Curve::from_samples(id, &pooled.samples);
    }
    let points = pooled.gap_curve(ARRIVAL_POINTS);
    let moments = pooled.observed_ns / SHORTEST_GAP_NS;
    let longest = pooled.samples.iter().copied().max_by(f64::total_cmp);
    let points = points.iter().map(|point| (point.wait_ns, point.arrival_probability));
    Curve::from_arrivals(id, points, longest, moments)
}

/// The statistic of one block of a metric.
fn statistic(metric: Metric) -> &'static str {
    match metric {
        Metric::SpinGap => "longest gap of the block",
        Metric::RunDelay => "longest wait of the block",
        Metric::Wakeup => "99th percentile of the block",
        Metric::ComputeRate => "median rate of the block",
        Metric::IoAhci | Metric::IoVirtio => "median latency of the block",
    }
}

fn comparison(contrast: &Contrast) -> Option<Comparison> {
    let interval = contrast.interval.as_ref()?;
    Some(Comparison {
        ratio: interval.ratio,
        low: interval.low,
        high: interval.high,
        p_holm: contrast.p_holm,
        verdict: verdict(&contrast.verdict),
    })
}

/// Converts the verdict to that of the report.
pub fn verdict(verdict: &stats::Verdict) -> Verdict {
    match verdict {
        stats::Verdict::Better => Verdict::Better,
        stats::Verdict::Same => Verdict::Same,
        stats::Verdict::Worse => Verdict::Worse,
        stats::Verdict::Unknown { have, need } if have < need => {
            Verdict::Unknown(format!("{}, {need} needed", count_noun(*have, "start")))
        }
        stats::Verdict::Unknown { have, .. } => {
            let verb = select_verb(*have, "does", "do");
            Verdict::Unknown(format!("{} {verb} not settle it", count_noun(*have, "start")))
        }
    }
}

fn seconds(seconds: f64) -> String {
    // Budgets and durations are small positive numbers: the cast is exact enough for text.
    let whole = std::time::Duration::try_from_secs_f64(seconds.max(0.0))
        .unwrap_or(std::time::Duration::MAX);
    time::wait(u64::try_from(whole.as_nanos()).unwrap_or(u64::MAX))
}

/// The result as JSON, for programs: the ranking in the deciding metric and load state.
///
/// # Errors
/// If a number cannot be written.
pub fn json(page: &Page) -> Result<String, Failure> {
    let rows: Vec<serde_json::Value> = page
        .deciding()
        .into_iter()
        .flat_map(|ranking| &ranking.rows)
        .map(|row| {
            let against = row.comparison.as_ref().map(|comparison| {
                let (verdict, why) = match &comparison.verdict {
                    Verdict::Better => ("better", None),
                    Verdict::Same => ("same", None),
                    Verdict::Worse => ("worse", None),
                    Verdict::Unknown(why) => ("unknown", Some(why)),
                };
                serde_json::json!({
                    "ratio": comparison.ratio,
                    "low": comparison.low,
                    "high": comparison.high,
                    "p_holm": comparison.p_holm,
                    "verdict": verdict,
                    "why": why,
                })
            });
            serde_json::json!({
                "candidate": page.name(row.candidate),
                "blocks": row.blocks,
                "median": row.median,
                "worst": row.worst,
                "against_baseline": against,
            })
        })
        .collect();
    let document = serde_json::json!({
        "format": "pinfold-tune-result/1",
        "winner": page.answer.winner.map(|id| page.name(id)),
        "metric": page.answer.metric.name(),
        "load": page.answer.load.to_string(),
        "accelerator": page.provenance.origin.accelerator.to_string(),
        "ranking": rows,
        "store": page.provenance.store,
        "run": page.provenance.run,
    });
    serde_json::to_string_pretty(&document)
        .map_err(|error| Failure::from_error(Exit::Host, &error, None))
}
