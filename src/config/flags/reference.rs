//! The reference page and the sample file, written from the table.

use super::{Field, Frontend, Group, Kind, Row, Status, TABLE, Value, given, table::REFUSED_VARIABLES};

const INTRODUCTION: &str = "\
# Router flags

Made from the table in `src/config/flags/table.rs`; `KVROUTE_BLESS=1 cargo test --test flag_table` writes it anew.

A flag wins over its environment variable, that over the `[router]` section of the file (the same names, with
underscores), that over the default. `kvroute up` and `kvroute drive` start from mode `kv`.

* A switch is turned off by `--no-` before its name. The last spelling on the command line wins.
* Option names are not abbreviated.
* A variable that does not read stops the start and is named, even where a flag wins over it. Switches read `true`, `1`,
  `yes`, `on` and `false`, `0`, `no`, `off` in any case. An empty variable is an unset one, `DYN_ROUTER_MODE` too;
  Dynamo refuses an empty mode and reads any other word as false.
* A worker reads the same variables. Without a mode it advertises no router configuration and inherits the
  frontend's: a flag without `--router-mode` is then an error, a variable without `DYN_ROUTER_MODE` one warning. With one,
  its configuration replaces the frontend's as a whole. The cost model and the hold stand beside it: a worker advertises each of them where it is
  given, with a mode or without one, and else inherits the frontend's.
* What the `--device-weight` flags of a worker say is on its card as `device_weights`, beside `router_config` and whether or not it has a
  mode. It replaces the frontend's as a whole; without such a flag the set has the frontend's.
* Modes other than `kv` do not look at the `kv_router_config` flags; one that is given to them is warned of.
* `--load-aware` means mode `kv` in which cached blocks are worth nothing, and KV events are not followed. It overrules the flags it sets.
";

const REFUSED: &str = "
## Refused in this version

These flags are read and checked like the others, and accepted at the value that asks for nothing. Any other value
stops the start with the reason below.

";

/// The reference page, in Markdown.
#[must_use]
pub fn reference_page() -> String {
    let mut page = format!(
        "{INTRODUCTION}\n## Flags that work\n\n\
         | Flag | Variable | Accepts | Default | Card key | Taken by | What it does |\n|---|---|---|---|---|---|---|\n"
    );
    for row in TABLE.iter().filter(|row| row.status == Status::Works) {
        page += &format!(
            "| {} | {} | {} | {} | {} | {} | {} |\n",
            flag(row),
            variables(row),
            row.accepted(),
            default(row),
            key(row),
            takers(row),
            row.help
        );
    }
    page += REFUSED;
    page += "| Flag | Variable | Accepts | Accepted now | Card key | Taken by | What it would do | Why not | Needs |\n\
             |---|---|---|---|---|---|---|---|---|\n";
    for row in &TABLE {
        let Status::Refused { reason, needs, also } = row.status else { continue };
        let now: Vec<_> =
            std::iter::once(default(row)).chain(also.iter().map(|also| format!("`{also}`"))).collect();
        page += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {reason} | {needs} |\n",
            flag(row),
            variables(row),
            row.accepted(),
            now.join(", "),
            key(row),
            takers(row),
            row.help
        );
    }
    page += "\nA variable without a flag stops the start of a frontend, whatever its value:\n\n";
    for (variable, reason) in REFUSED_VARIABLES {
        page += &format!("* `{variable}`: {reason}.\n");
    }
    page
}

/// A file's `[router]` section with every key, commented out at its default.
#[must_use]
pub fn sample_section() -> String {
    let mut text =
        "# Router flags of kvroute frontend, at their defaults; docs/router-flags.md explains them.\n\n\
                    [router]\n"
            .to_owned();
    for row in TABLE.iter().filter(|row| row.status == Status::Works && row.deprecated.is_none()) {
        let about = format!("\n# {} ({})\n# {}", row.help, row.accepted(), row.file_key());
        // What is unset has no value that could stand there.
        text += &match given::default::<Frontend>(row.field) {
            Value::Unset => format!("{about}: unset\n"),
            value => format!("{about} = {}\n", toml_value(value)),
        };
    }
    text
}

fn toml_value(value: Value) -> String {
    match value {
        Value::Text(text) => format!("\"{text}\""),
        value => value.to_string(),
    }
}

fn flag(row: &Row) -> String {
    let mut text = format!("`--{}`", row.flag);
    if !matches!(row.kind, Kind::Switch { .. }) {
        text = format!("`--{} {}`", row.flag, row.value_name);
    }
    if let Some(negated) = row.negated {
        text += &format!(", `--{negated}`");
    }
    if let Some(alias) = row.alias {
        text += &format!(" (old name: `--{}`)", alias.flag);
    }
    text
}

fn variables(row: &Row) -> String {
    let Some(variable) = row.variable else { return "none".to_owned() };
    match row.old_variable {
        Some(old) => format!("`{variable}`, else `{old}` (old name)"),
        None => format!("`{variable}`"),
    }
}

fn default(row: &Row) -> String {
    match given::default::<Frontend>(row.field) {
        Value::Unset => "unset".to_owned(),
        mode if row.field == Field::RouterMode => format!("`{mode}`; on a worker unset"),
        value => format!("`{value}`"),
    }
}

fn key(row: &Row) -> String {
    let place = match row.group {
        Group::Card | Group::Router | Group::FrontendOnly => "",
        Group::Threshold => "load_threshold_config.",
        Group::Kv => "kv_router_config.",
        Group::Devices => "device_weights.",
    };
    row.key.map_or_else(|| "none".to_owned(), |key| format!("`{place}{key}`"))
}

fn takers(row: &Row) -> &'static str {
    match row.frontend_only() {
        true if row.workers_have_their_own => {
            "frontend; a worker's own flag of that name says where it belongs"
        }
        true => "frontend",
        false => "frontend, worker",
    }
}

/// Where the page and the sample disagree with the table, the table is right.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_on_the_page() {
        let page = reference_page();
        for row in &TABLE {
            assert!(page.contains(&flag(row)) && page.contains(&variables(row)), "{}", row.flag);
        }
        assert_eq!(default(super::super::row(Field::Temperature)), "`0.0`");
    }
}
